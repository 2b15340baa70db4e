// RUN: dmlc opt %s --split-input-file --passes optimizer --expect-error | filecheck %s

// CHECK: optimizer_errors.mlir:4:1: error: there are no gradients; the pass autodiff makes them
func.func @main(%w: tensor<f32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  func.return %w : tensor<f32>
}

// -----

// CHECK: error: the model has an argument %lr, a name that the training step gives to one of its own
func.func @main(%lr: tensor<f32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
  %g = dmlc.gradient %lr, %lr {param = "lr"} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  func.return %lr : tensor<f32>
}

// -----

// CHECK: error: there is no optimizer 'lamb'; there are sgd, adam, adamw
builtin.module attributes {dmlc.train = {optimizer = "lamb"}} {
  func.func @main(%w: tensor<f32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
    %g = dmlc.gradient %w, %w {param = "w"} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    func.return %w : tensor<f32>
  }
}
