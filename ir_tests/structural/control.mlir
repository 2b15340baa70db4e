// RUN: dmlc opt %s --split-input-file | filecheck %s
// RUN: dmlc opt %s --split-input-file --generic | dmlc opt - --split-input-file | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes isolate,canonicalize,cse,dce,fuse --check

// A loop over rows from the last to the first: what it carries, a row of what it scans, what is the same in all iterations.
// CHECK-LABEL: func.func @scan
// CHECK: %[[L:.*]], %[[S:.*]] = dmlc.scan %h, %x, %w {count = 4 : i64, scanned = 1 : i64, shared = 1 : i64, reverse = true} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %[[C:.*]]: tensor<3xf32>, %[[R:.*]]: tensor<3xf32>, %[[V:.*]]: tensor<3xf32>):
// CHECK-NEXT: %[[A:.*]] = dmlc.add %[[C]], %[[R]]
// CHECK: dmlc.yield %{{.*}}, %[[A]] : (tensor<3xf32>, tensor<3xf32>) -> ()
// CHECK-NEXT: } : (tensor<3xf32>, tensor<4x3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<4x3xf32>)
func.func @scan(%x: tensor<4x3xf32>, %h: tensor<3xf32>, %w: tensor<3xf32>) -> (tensor<3xf32>, tensor<4x3xf32>) {
  %l, %s = dmlc.scan %h, %x, %w {count = 4 : i64, scanned = 1 : i64, shared = 1 : i64, reverse = true} {
  ^bb0(%i: tensor<i64>, %c: tensor<3xf32>, %r: tensor<3xf32>, %v: tensor<3xf32>):
    %a = dmlc.add %c, %r : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %m = dmlc.mul %a, %v : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %m, %a : (tensor<3xf32>, tensor<3xf32>) -> ()
  } : (tensor<3xf32>, tensor<4x3xf32>, tensor<3xf32>) -> (tensor<3xf32>, tensor<4x3xf32>)
  func.return %l, %s : tensor<3xf32>, tensor<4x3xf32>
}

// -----

// A loop over nothing gives what it began with, and stacks of no rows.
// CHECK-LABEL: func.func @no_rows
// CHECK: dmlc.scan %h, %x {count = 0 : i64, scanned = 1 : i64} {
func.func @no_rows(%x: tensor<0x3xf32>, %h: tensor<3xf32>) -> (tensor<3xf32>, tensor<0x3xf32>) {
  %l, %s = dmlc.scan %h, %x {count = 0 : i64, scanned = 1 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<3xf32>, %r: tensor<3xf32>):
    %a = dmlc.add %c, %r : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %a, %a : (tensor<3xf32>, tensor<3xf32>) -> ()
  } : (tensor<3xf32>, tensor<0x3xf32>) -> (tensor<3xf32>, tensor<0x3xf32>)
  func.return %l, %s : tensor<3xf32>, tensor<0x3xf32>
}

// -----

// A loop that its data ends, with a branch in it.
// CHECK-LABEL: func.func @while
// CHECK: %{{.*}}, %{{.*}} = dmlc.while %{{.*}}, %x {count = 20 : i64} {
// CHECK: dmlc.yield %{{.*}} : (tensor<i1>) -> ()
// CHECK-NEXT: }, {
// CHECK-NEXT: ^{{.*}}(%[[K:.*]]: tensor<i64>, %[[C:.*]]: tensor<3xf32>):
// CHECK: dmlc.cond %{{.*}}, %[[C]] {
// CHECK: dmlc.yield %{{.*}}, %{{.*}} : (tensor<i64>, tensor<3xf32>) -> ()
// CHECK-NEXT: } : (tensor<i64>, tensor<3xf32>) -> (tensor<i64>, tensor<3xf32>)
func.func @while(%x: tensor<3xf32>, %w: tensor<3xf32>) -> (tensor<i64>, tensor<3xf32>) {
  %zero = dmlc.full {value = 0 : i64} : () -> tensor<i64>
  %n, %y = dmlc.while %zero, %x {count = 20 : i64} {
  ^bb0(%k: tensor<i64>, %c: tensor<3xf32>):
    %most = dmlc.full {value = 9 : i64} : () -> tensor<i64>
    %some = dmlc.lt %k, %most : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %sum = dmlc.reduce_sum %c {dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<f32>
    %ten = dmlc.full {value = 10.0 : f64} : () -> tensor<f32>
    %small = dmlc.lt %sum, %ten : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %go = dmlc.logical_and %some, %small : (tensor<i1>, tensor<i1>) -> tensor<i1>
    dmlc.yield %go : (tensor<i1>) -> ()
  }, {
  ^bb0(%k: tensor<i64>, %c: tensor<3xf32>):
    %one = dmlc.full {value = 1 : i64} : () -> tensor<i64>
    %next = dmlc.add %k, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
    %first = dmlc.eq %k, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %d = dmlc.cond %first, %c {
    ^bb1(%e: tensor<3xf32>):
      %q = dmlc.mul %e, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      dmlc.yield %q : (tensor<3xf32>) -> ()
    }, {
    ^bb2(%e: tensor<3xf32>):
      %a = dmlc.add %e, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      dmlc.yield %a : (tensor<3xf32>) -> ()
    } : (tensor<i1>, tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %next, %d : (tensor<i64>, tensor<3xf32>) -> ()
  } : (tensor<i64>, tensor<3xf32>) -> (tensor<i64>, tensor<3xf32>)
  func.return %n, %y : tensor<i64>, tensor<3xf32>
}
