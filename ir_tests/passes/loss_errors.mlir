// RUN: dmlc opt %s --split-input-file --passes loss --expect-error | filecheck %s

// CHECK: loss_errors.mlir:4:1: error: the model returns no result named loss but logits; a loss can be given: cross-entropy, mse, bce
func.func @main(%w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<4xf32> {dmlc.name = "logits"}) {
  func.return %w : tensor<4xf32>
}

// -----

// CHECK: error: the loss is a tensor<4xf32>; it must be a float scalar
func.func @main(%w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<4xf32> {dmlc.name = "loss"}) {
  func.return %w : tensor<4xf32>
}

// -----

// CHECK: error: the loss mine:loss is a Python function: it must be traced with the model
builtin.module attributes {dmlc.train = {loss = "mine:loss"}} {
  func.func @main(%w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<4xf32> {dmlc.name = "logits"}) {
    func.return %w : tensor<4xf32>
  }
}

// -----

// CHECK: error: there is no loss 'hinge'; there are cross-entropy, mse, bce
builtin.module attributes {dmlc.train = {loss = "hinge"}} {
  func.func @main(%w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<4xf32> {dmlc.name = "logits"}) {
    func.return %w : tensor<4xf32>
  }
}

// -----

// CHECK: error: class_dim 2 is no dim of the model's output, a tensor<4x5xf32>
builtin.module attributes {dmlc.train = {loss = "cross-entropy", class_dim = 2 : i64}} {
  func.func @main(%x: tensor<4x5xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}) -> (tensor<4x5xf32> {dmlc.name = "logits"}) {
    func.return %x : tensor<4x5xf32>
  }
}

// -----

// CHECK: error: class_dim 0 is the batch of the model's output, a tensor<4x5xf32>
builtin.module attributes {dmlc.train = {loss = "cross-entropy", class_dim = 0 : i64}} {
  func.func @main(%x: tensor<4x5xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}) -> (tensor<4x5xf32> {dmlc.name = "logits"}) {
    func.return %x : tensor<4x5xf32>
  }
}
