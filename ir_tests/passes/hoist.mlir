// RUN: dmlc opt %s --split-input-file --passes hoist | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes hoist --check

// What is made of weights alone leaves both loops; a shared value is one from outside.
// CHECK-LABEL: func.func @nested
// CHECK-NEXT: %[[T:.*]] = dmlc.transpose %w
// CHECK-NEXT: %[[U:.*]] = dmlc.neg %b
// CHECK-NEXT: dmlc.scan %x, %b {count = 3 : i64, shared = 1 : i64
// CHECK: dmlc.scan
// CHECK: dmlc.matmul %{{.*}}, %[[T]]
// CHECK: dmlc.add %{{.*}}, %[[U]]
func.func @nested(%x: tensor<2x2xf32>, %w: tensor<2x2xf32>, %b: tensor<2xf32>) -> tensor<2x2xf32> {
  %y = dmlc.scan %x, %b {count = 3 : i64, shared = 1 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<2x2xf32>, %s: tensor<2xf32>):
    %l = dmlc.scan %c {count = 2 : i64} {
    ^bb1(%j: tensor<i64>, %d: tensor<2x2xf32>):
      %t = dmlc.transpose %w {perm = array<i64: 1, 0>} : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %m = dmlc.matmul %d, %t : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
      %u = dmlc.neg %s : (tensor<2xf32>) -> tensor<2xf32>
      %a = dmlc.add %m, %u : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
      dmlc.yield %a : (tensor<2x2xf32>) -> ()
    } : (tensor<2x2xf32>) -> tensor<2x2xf32>
    dmlc.yield %l : (tensor<2x2xf32>) -> ()
  } : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2x2xf32>
  func.return %y : tensor<2x2xf32>
}

// -----

// What changes stays, what reads by index too, and branches keep what only one of them computes.
// CHECK-LABEL: func.func @stays
// CHECK-NEXT: dmlc.scan
// CHECK: dmlc.cast %{{.*}}
// CHECK: dmlc.take
// CHECK: dmlc.cond
// CHECK: dmlc.exp %w
func.func @stays(%x: tensor<2xf32>, %w: tensor<2xf32>, %k: tensor<2xi64>, %p: tensor<i1>) -> tensor<2xf32> {
  %y = dmlc.scan %x {count = 3 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<2xf32>):
    %n = dmlc.cast %i {to = "f32"} : (tensor<i64>) -> tensor<f32>
    %g = dmlc.take %w, %k {dim = 0 : i64} : (tensor<2xf32>, tensor<2xi64>) -> tensor<2xf32>
    %a = dmlc.add %c, %n : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
    %h = dmlc.add %a, %g : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %r = dmlc.cond %p {
      %e = dmlc.exp %w : (tensor<2xf32>) -> tensor<2xf32>
      dmlc.yield %e : (tensor<2xf32>) -> ()
    }, {
      dmlc.yield %h : (tensor<2xf32>) -> ()
    } : (tensor<i1>) -> tensor<2xf32>
    dmlc.yield %r : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// -----

// One product for all rows, of which the loop takes one at a time; that of the state stays, and so does one of a row with what the loop makes.
// CHECK-LABEL: func.func @rows
// CHECK-NEXT: %[[P:.*]] = dmlc.linear %x, %w {{.*}} : (tensor<3x2x4xf32>, tensor<5x4xf32>) -> tensor<3x2x5xf32>
// CHECK-NEXT: dmlc.scan %h, %x, %[[P]], %v {count = 3 : i64, scanned = 2 : i64, shared = 1 : i64
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %[[C:.*]]: tensor<2x5xf32>, %{{.*}}: tensor<2x4xf32>, %[[R:.*]]: tensor<2x5xf32>, %[[V:.*]]: tensor<5x5xf32>):
// CHECK-NEXT: dmlc.linear %[[C]], %[[V]]
// CHECK-NEXT: dmlc.add %[[R]]
func.func @rows(%h: tensor<2x5xf32>, %x: tensor<3x2x4xf32>, %w: tensor<5x4xf32>, %v: tensor<5x5xf32>) -> tensor<2x5xf32> {
  %y = dmlc.scan %h, %x, %v {count = 3 : i64, scanned = 1 : i64, shared = 1 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<2x5xf32>, %r: tensor<2x4xf32>, %u: tensor<5x5xf32>):
    %p = dmlc.linear %r, %w : (tensor<2x4xf32>, tensor<5x4xf32>) -> tensor<2x5xf32>
    %q = dmlc.linear %c, %u : (tensor<2x5xf32>, tensor<5x5xf32>) -> tensor<2x5xf32>
    %a = dmlc.add %p, %q : (tensor<2x5xf32>, tensor<2x5xf32>) -> tensor<2x5xf32>
    %t = dmlc.tanh %a : (tensor<2x5xf32>) -> tensor<2x5xf32>
    dmlc.yield %t : (tensor<2x5xf32>) -> ()
  } : (tensor<2x5xf32>, tensor<3x2x4xf32>, tensor<5x5xf32>) -> tensor<2x5xf32>
  func.return %y : tensor<2x5xf32>
}
