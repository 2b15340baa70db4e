// RUN: dmlc opt %s --split-input-file --passes autodiff --expect-error | filecheck %s

// CHECK: error: the program has no result named loss; it returns logits
func.func @no_loss(%w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<4xf32> {dmlc.name = "logits"}) {
  %y = dmlc.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

// CHECK: autodiff_errors.mlir:13:8: error: the loss is a tensor<4xf32>; it must be a float scalar
func.func @a_vector(%w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<4xf32> {dmlc.name = "loss"}) {
  %y = dmlc.exp %w : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

// An op that cannot be differentiated is only in the way if a trained parameter lies before it: the first one does not matter.
// CHECK: autodiff_errors.mlir:24:8: error: 'dmlc.barrier' has no gradient (made after autodiff), but it lies between a trained parameter and the loss
func.func @in_the_way(%x: tensor<4xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %a = dmlc.barrier %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b = dmlc.mul %a, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c = dmlc.barrier %b, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %l = dmlc.reduce_sum %c {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  func.return %l : tensor<f32>
}

// -----

// CHECK: error: the loss depends on no trained parameter
func.func @nothing_to_train(%x: tensor<4xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param", dmlc.frozen}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %y = dmlc.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %l = dmlc.reduce_sum %y {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
  func.return %l : tensor<f32>
}
