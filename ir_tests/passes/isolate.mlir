// RUN: dmlc opt %s --split-input-file --passes isolate | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes isolate --check

// What a loop in a branch reads becomes an operand of the loop, and then of the branch.
// CHECK-LABEL: func.func @nested
// CHECK: dmlc.cond %p, %x, %w {
// CHECK-NEXT: ^{{.*}}(%[[X:.*]]: tensor<3xf32>, %[[W:.*]]: tensor<3xf32>):
// CHECK-NEXT: dmlc.scan %[[X]], %[[W]] {count = 2 : i64, shared = 1 : i64} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %[[C:.*]]: tensor<3xf32>, %[[V:.*]]: tensor<3xf32>):
// CHECK-NEXT: dmlc.mul %[[C]], %[[V]]
// CHECK: }, {
// CHECK-NEXT: ^{{.*}}(%[[Y:.*]]: tensor<3xf32>, %{{.*}}: tensor<3xf32>):
// CHECK-NEXT: dmlc.yield %[[Y]]
func.func @nested(%p: tensor<i1>, %x: tensor<3xf32>, %w: tensor<3xf32>) -> tensor<3xf32> {
  %y = dmlc.cond %p {
    %l = dmlc.scan %x {count = 2 : i64} {
    ^bb0(%i: tensor<i64>, %c: tensor<3xf32>):
      %m = dmlc.mul %c, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
      dmlc.yield %m : (tensor<3xf32>) -> ()
    } : (tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %l : (tensor<3xf32>) -> ()
  }, {
    dmlc.yield %x : (tensor<3xf32>) -> ()
  } : (tensor<i1>) -> tensor<3xf32>
  func.return %y : tensor<3xf32>
}

// -----

// Nothing is read from outside.
// CHECK-LABEL: func.func @closed
// CHECK-NEXT: dmlc.scan %x {count = 2 : i64} {
func.func @closed(%x: tensor<3xf32>) -> tensor<3xf32> {
  %l = dmlc.scan %x {count = 2 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<3xf32>):
    %m = dmlc.neg %c : (tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %m : (tensor<3xf32>) -> ()
  } : (tensor<3xf32>) -> tensor<3xf32>
  func.return %l : tensor<3xf32>
}
