// RUN: dmlc opt %s --split-input-file --passes plan --expect-error | filecheck %s

// The smallest plan splits both matrices in four (1 MiB each) and holds the input (128 KiB), the hidden activations' quarter and a partial sum.
// CHECK: plan_errors.mlir:8:3: error: no plan fits 1,000,000 bytes a rank: the smallest found needs [[NEEDS:[0-9]]],{{[0-9]+,[0-9]+}} bytes, 1,{{[0-9]+,[0-9]+}} too many
// CHECK: note: use more devices, a smaller batch (--dim) or a lower precision
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, memory = 1000000 : i64}} {

  func.func @too_large(%x: tensor<64x512xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<512x2048xf32> {dmlc.role = "param"}, %w2: tensor<2048x512xf32> {dmlc.role = "param"}) -> tensor<64x512xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x512xf32>, tensor<512x2048xf32>) -> tensor<64x2048xf32>
    %h = dmlc.relu %a : (tensor<64x2048xf32>) -> tensor<64x2048xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x2048xf32>, tensor<2048x512xf32>) -> tensor<64x512xf32>
    func.return %d : tensor<64x512xf32>
  }
}

// -----

// Weights alone would fit into this; the activations do not.
// CHECK: error: no plan fits 2,200,000 bytes a rank: the smallest found needs 2,{{[0-9]+,[0-9]+}} bytes, {{[0-9]+,[0-9]+}} too many
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, plan = "tp=4", memory = 2200000 : i64}} {
  func.func @activations(%x: tensor<64x512xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<512x2048xf32> {dmlc.role = "param"}, %w2: tensor<2048x512xf32> {dmlc.role = "param"}) -> tensor<64x512xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x512xf32>, tensor<512x2048xf32>) -> tensor<64x2048xf32>
    %h = dmlc.relu %a : (tensor<64x2048xf32>) -> tensor<64x2048xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x2048xf32>, tensor<2048x512xf32>) -> tensor<64x512xf32>
    func.return %d : tensor<64x512xf32>
  }
}

// -----

// An axis that was asked for and that no op can use. (`data` takes the batch, `model` must not.)
// CHECK: error: no op of this model can use tensor parallelism (tp=4)
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 8 : i64, plan = "dp=2,tp=4"}} {
  func.func @unusable(%x: tensor<64x3xf32> {dmlc.batch_dim = 0 : i64}) -> tensor<64x3xf32> {
    %a = dmlc.softmax %x {dim = 1 : i64} : (tensor<64x3xf32>) -> tensor<64x3xf32>
    func.return %a : tensor<64x3xf32>
  }
}

// -----

// CHECK: plan_errors.mlir:{{[0-9]+}}:1: error: the plan dp=3 is for 3 devices, not 8; what fits: dp=1,tp=8, dp=2,tp=4, dp=4,tp=2, dp=8,tp=1
builtin.module attributes {dmlc.request = {devices = 8 : i64, plan = "dp=3"}} {
  func.func @product(%x: tensor<3xf32>) -> tensor<3xf32> {
    func.return %x : tensor<3xf32>
  }
}

// -----

// CHECK: error: pipeline parallelism (pp) is not available yet; a plan takes dp and tp
builtin.module attributes {dmlc.request = {devices = 8 : i64, plan = "pp=2,dp=4"}} {
  func.func @later(%x: tensor<3xf32>) -> tensor<3xf32> {
    func.return %x : tensor<3xf32>
  }
}

// -----

// CHECK: error: 'tp' is not part of a plan; write for example dp=2,tp=4 or auto
builtin.module attributes {dmlc.request = {devices = 8 : i64, plan = "tp"}} {
  func.func @grammar(%x: tensor<3xf32>) -> tensor<3xf32> {
    func.return %x : tensor<3xf32>
  }
}
