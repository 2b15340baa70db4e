// RUN: dmlc opt %s --split-input-file --passes autodiff,optimizer,cse | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes autodiff,optimizer --check

// Momentum: one state tensor a parameter. The norm is one sum over all parameters; b, which no_decay names, is not decayed.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %b: tensor<4xf32> {dmlc.role = "param", dmlc.part = {names = ["layer.bias"]}, dmlc.decay = 0.0 : f64}
// CHECK-SAME: %lr: tensor<f32> {dmlc.role = "hyper"}, %weight_decay: tensor<f32> {dmlc.role = "hyper"}, %max_norm: tensor<f32> {dmlc.role = "hyper"}
// CHECK-SAME: %opt_step: tensor<i64> {dmlc.role = "state", dmlc.init = 0 : i64}
// CHECK-SAME: %w_momentum: tensor<4xf32> {dmlc.role = "state", dmlc.of = "w", dmlc.slot = "momentum", dmlc.init = 0.0 : f64}
// CHECK-SAME: -> (tensor<f32> {dmlc.name = "loss"}, tensor<f32> {dmlc.name = "grad_norm"}, tensor<4xf32> {dmlc.name = "w", dmlc.updates = "w"}
// CHECK: %[[GB:.*]] = dmlc.gradient %{{.*}}, %b
// CHECK: %[[GW:.*]] = dmlc.gradient %{{.*}}, %w
// CHECK: dmlc.square_sum %[[GW]] {{.*}}dmlc.phase = "update"
// CHECK: dmlc.add_n %{{.*}}, %{{.*}} {
// CHECK: dmlc.mul %w, %weight_decay
// CHECK-NOT: dmlc.mul %b, %weight_decay
// CHECK-NOT: dmlc.matmul
builtin.module attributes {dmlc.mode = "train", dmlc.train = {optimizer = "sgd", momentum = 0.9 : f64, no_decay = "bias"}} {
  func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param"}, %b: tensor<4xf32> {dmlc.role = "param", dmlc.part = {names = ["layer.bias"]}}) -> (tensor<f32> {dmlc.name = "loss"}) {
    %a = dmlc.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %y = dmlc.add %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %s = dmlc.mul %y, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %l = dmlc.reduce_sum %s {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
    func.return %l : tensor<f32>
  }
}

// -----

// AdamW under a dynamic loss scale: on overflow everything is what it was, but for the random counter, which becomes state, and the scale.
// Running statistics of the model are among what a step replaces.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %rng_seed: tensor<i64> {dmlc.role = "seed"}, %rng_step: tensor<i64> {dmlc.role = "state", dmlc.init = 0 : i64}
// CHECK-SAME: %w_m: {{.*}} %w_v: {{.*}} %good_steps: tensor<i64> {dmlc.role = "state", dmlc.init = 0 : i64}
// CHECK-SAME: tensor<i1> {dmlc.name = "overflow"}, tensor<f32> {dmlc.name = "r", dmlc.updates = "r"}
// CHECK: %[[OVERFLOW:.*]] = dmlc.logical_not
// CHECK: %[[RNG:.*]] = dmlc.add %rng_step
// CHECK: %[[R:.*]] = dmlc.select %[[OVERFLOW]], %r,
// CHECK: %[[W:.*]] = dmlc.select %[[OVERFLOW]], %w,
// CHECK: dmlc.select %[[OVERFLOW]], %w_m,
// CHECK: dmlc.select %[[OVERFLOW]], %w_v,
// CHECK: %[[STEP:.*]] = dmlc.select %[[OVERFLOW]], %opt_step,
// CHECK: func.return %{{.*}}, %{{.*}}, %[[OVERFLOW]], %[[R]], %[[W]], %{{.*}}, %{{.*}}, %[[STEP]], %[[RNG]],
builtin.module attributes {dmlc.mode = "train", dmlc.train = {optimizer = "adamw", loss_scale = "dynamic"}} {
  func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param"}, %r: tensor<f32> {dmlc.role = "buffer"}, %rng_seed: tensor<i64> {dmlc.role = "seed"}, %rng_step: tensor<i64> {dmlc.role = "seed"}) -> (tensor<f32> {dmlc.name = "loss"}, tensor<f32> {dmlc.name = "r.new", dmlc.updates = "r"}) {
    %a = dmlc.mul %x, %w : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %d = dmlc.dropout %a, %rng_seed, %rng_step {p = 0.5 : f64, stream = 0 : i64} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
    %l = dmlc.reduce_sum %d {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
    %r2 = dmlc.exp %r : (tensor<f32>) -> tensor<f32>
    func.return %l, %r2 : tensor<f32>, tensor<f32>
  }
}

// -----

// A narrow parameter keeps a wide copy, which is what is updated.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %w_master: tensor<4xf32> {dmlc.role = "state", dmlc.of = "w", dmlc.slot = "master", dmlc.init = "param"}
// CHECK: %[[NEW:.*]] = dmlc.sub %w_master
// CHECK: %[[ROUNDED:.*]] = dmlc.cast %[[NEW]] {to = "bf16"
// CHECK: func.return %{{.*}}, %{{.*}}, %[[ROUNDED]], %[[NEW]],
builtin.module attributes {dmlc.mode = "train", dmlc.train = {optimizer = "sgd"}} {
  func.func @main(%w: tensor<4xbf16> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
    %a = dmlc.cast %w {to = "f32"} : (tensor<4xbf16>) -> tensor<4xf32>
    %l = dmlc.reduce_sum %a {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<f32>
    func.return %l : tensor<f32>
  }
}
