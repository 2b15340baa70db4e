// RUN: dmlc opt %s --split-input-file --passes autodiff | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes autodiff --check

// Each op's gradient stands after the forward ops, last op first, and says whose it is; nothing is computed for the input x.
// CHECK-LABEL: func.func @main
// CHECK-SAME: {dmlc.name = "loss"}, tensor<5x4xf32> {dmlc.name = "w.grad"}, tensor<5xf32> {dmlc.name = "b.grad"})
// CHECK: %[[H:.*]] = dmlc.linear %x, %w
// CHECK: %[[T:.*]] = dmlc.tanh
// CHECK: %[[L:.*]] = dmlc.reduce_sum %[[T]]
// CHECK: dmlc.full {value = 1.0 : f64, dmlc.id = "3.full", dmlc.of = "3"}
// CHECK: dmlc.mul %[[T]], %[[T]] {dmlc.id = "2.mul", dmlc.of = "2"}
// CHECK: %[[DB:.*]] = dmlc.reduce_sum
// CHECK-NEXT: %[[GB:.*]] = dmlc.gradient %[[DB]], %b {param = "b"
// CHECK-NOT: dmlc.matmul
// CHECK: %[[DW:.*]] = dmlc.contract
// CHECK-NEXT: %[[GW:.*]] = dmlc.gradient %[[DW]], %w {param = "w"
// CHECK-NEXT: func.return %[[L]], %[[GW]], %[[GB]]
func.func @main(%x: tensor<6x4xf32> {dmlc.role = "input"}, %w: tensor<5x4xf32> {dmlc.role = "param"}, %b: tensor<5xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %h = dmlc.linear %x, %w : (tensor<6x4xf32>, tensor<5x4xf32>) -> tensor<6x5xf32>
  %y = dmlc.add %h, %b : (tensor<6x5xf32>, tensor<5xf32>) -> tensor<6x5xf32>
  %t = dmlc.tanh %y : (tensor<6x5xf32>) -> tensor<6x5xf32>
  %l = dmlc.reduce_sum %t {dims = array<i64: 0, 1>} : (tensor<6x5xf32>) -> tensor<f32>
  func.return %l : tensor<f32>
}

// -----

// A weight used twice has one gradient: both uses are added first. A frozen one and one that the loss does not reach have none.
// CHECK-LABEL: func.func @main
// CHECK-SAME: {dmlc.name = "loss"}, tensor<3x3xf32> {dmlc.name = "w.grad"})
// CHECK: %[[SUM:.*]] = dmlc.add %{{.*}}, %{{.*}} {dmlc.id = "0.add", dmlc.of = "0"}
// CHECK-NEXT: dmlc.gradient %[[SUM]], %w
// CHECK-NOT: dmlc.gradient
func.func @main(%x: tensor<2x3xf32> {dmlc.role = "input"}, %w: tensor<3x3xf32> {dmlc.role = "param"}, %frozen: tensor<3xf32> {dmlc.role = "param", dmlc.frozen}, %apart: tensor<3xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %a = dmlc.matmul %x, %w : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32>
  %b = dmlc.matmul %a, %w : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32>
  %c = dmlc.mul %b, %frozen : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %step = dmlc.floor %apart : (tensor<3xf32>) -> tensor<3xf32>
  %d = dmlc.add %c, %step : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  %l = dmlc.reduce_sum %d {dims = array<i64: 0, 1>} : (tensor<2x3xf32>) -> tensor<f32>
  func.return %l : tensor<f32>
}

// -----

// The gradient of a condition is a condition: each branch computes its forward part again. A branch that does not read w gives zeros.
// CHECK-LABEL: func.func @main
// CHECK: dmlc.cond %p
// CHECK: %[[G:.*]] = dmlc.cond %p
// CHECK: dmlc.exp %w {dmlc.id = "1#re"
// CHECK: dmlc.yield
// CHECK: dmlc.full {value = 0.0 : f64
// CHECK: dmlc.gradient %[[G]], %w
func.func @main(%p: tensor<i1> {dmlc.role = "input"}, %x: tensor<3xf32> {dmlc.role = "input"}, %w: tensor<3xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %y = dmlc.cond %p {
    %e = dmlc.exp %w : (tensor<3xf32>) -> tensor<3xf32>
    %m = dmlc.mul %e, %x : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %m : (tensor<3xf32>) -> ()
  }, {
    dmlc.yield %x : (tensor<3xf32>) -> ()
  } : (tensor<i1>) -> tensor<3xf32>
  %l = dmlc.reduce_sum %y {dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<f32>
  func.return %l : tensor<f32>
}

// -----

// A loop runs backwards over the values carried into each iteration, which the forward loop now stacks.
// CHECK-LABEL: func.func @main
// CHECK: %[[Y:.*]], %[[STACK:.*]] = dmlc.scan %x {count = 4 : i64
// CHECK: dmlc.yield %{{.*}}, %[[C:.*]] : (tensor<3xf32>, tensor<3xf32>) -> ()
// CHECK: %{{.*}}, %[[DW:.*]] = dmlc.scan %{{.*}}, %{{.*}}, %[[STACK]] {count = 4 : i64, scanned = 1 : i64, reverse = true
// CHECK: %[[SUM:.*]] = dmlc.add %[[DW]],
// CHECK-NEXT: dmlc.gradient %[[SUM]], %w
func.func @main(%x0: tensor<3xf32> {dmlc.role = "input"}, %w: tensor<3xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %x = dmlc.mul %x0, %w {dmlc.name = "x"} : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  %y = dmlc.scan %x {count = 4 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<3xf32>):
    %s = dmlc.mul %c, %c : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %m = dmlc.mul %s, %w : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    dmlc.yield %m : (tensor<3xf32>) -> ()
  } : (tensor<3xf32>) -> tensor<3xf32>
  %l = dmlc.reduce_sum %y {dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<f32>
  func.return %l : tensor<f32>
}

// -----

// With a loss scale, that is where the backward pass begins.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %loss_scale: tensor<f32> {dmlc.role = "state", dmlc.init = 65536.0 : f64}
// CHECK: dmlc.mul %loss_scale, %w
builtin.module attributes {dmlc.mode = "train", dmlc.train = {loss_scale = "dynamic"}} {
  func.func @main(%w: tensor<f32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
    %l = dmlc.mul %w, %w : (tensor<f32>, tensor<f32>) -> tensor<f32>
    func.return %l : tensor<f32>
  }
}
