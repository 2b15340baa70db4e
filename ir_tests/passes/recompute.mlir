// RUN: dmlc opt %s --split-input-file --passes recompute | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes recompute --check

// Marked ops are made again for the backward pass, right before its first op that asks for them. What they read comes through barriers:
// the seed too, so that nothing is drawn ahead, and with the same stream, so that the mask repeats. A weight needs none.
// CHECK-LABEL: func.func @marked
// CHECK: %h = dmlc.linear %x, %w
// CHECK: %keep = dmlc.dropout_mask %seed, %step
// CHECK: %dout = dmlc.mul %out, %two
// CHECK: %vseed.bar0 = dmlc.barrier %seed, %y
// CHECK: %vstep.bar0 = dmlc.barrier %step, %y
// CHECK: %keep_re = dmlc.dropout_mask %vseed.bar0, %vstep.bar0 {dmlc.id = "2#re", dmlc.of = "2", p = 0.5 : f64, shape = array<i64: 4, 8>, stream = 7
// CHECK: %da = dmlc.select %keep_re, %dout
// CHECK: %vx.bar0 = dmlc.barrier %x, %y
// CHECK: %h_re = dmlc.linear %vx.bar0, %w
// CHECK: %a_re = dmlc.tanh %h_re
// CHECK: %sq = dmlc.mul %a_re, %a_re
// CHECK: dmlc.gradient %dw, %w
builtin.module attributes {dmlc.mode = "train"} {
  func.func @marked(%x: tensor<4x8xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<8x8xf32> {dmlc.role = "param"}, %seed: tensor<i64> {dmlc.role = "seed"}, %step: tensor<i64> {dmlc.role = "state"}) -> (tensor<f32>, tensor<8x8xf32>) {
    %h = dmlc.linear %x, %w {dmlc.name = "h", dmlc.remat = true} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %a = dmlc.tanh %h {dmlc.name = "a", dmlc.remat = true} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %keep = dmlc.dropout_mask %seed, %step {p = 0.5, shape = array<i64: 4, 8>, stream = 7 : i64, dmlc.name = "keep", dmlc.remat = true} : (tensor<i64>, tensor<i64>) -> tensor<4x8xi1>
    %zero = dmlc.full {value = 0.0, dmlc.name = "zero"} : () -> tensor<f32>
    %out = dmlc.select %keep, %a, %zero {dmlc.name = "out"} : (tensor<4x8xi1>, tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %y = dmlc.mul %out, %out {dmlc.name = "y"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %loss = dmlc.reduce_sum %y {dims = array<i64: 0, 1>, dmlc.name = "loss"} : (tensor<4x8xf32>) -> tensor<f32>
    %two = dmlc.full {value = 2.0, dmlc.name = "two", dmlc.of = "5"} : () -> tensor<f32>
    %dout = dmlc.mul %out, %two {dmlc.name = "dout", dmlc.of = "5"} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %da = dmlc.select %keep, %dout, %zero {dmlc.name = "da", dmlc.of = "4"} : (tensor<4x8xi1>, tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
    %sq = dmlc.mul %a, %a {dmlc.name = "sq", dmlc.of = "1"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %s = dmlc.mul %da, %sq {dmlc.name = "s", dmlc.of = "1"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %dh = dmlc.sub %da, %s {dmlc.name = "dh", dmlc.of = "1"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %dw = dmlc.contract %dh, %x {equation = "bj,bk->jk", dmlc.name = "dw", dmlc.of = "0"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %g = dmlc.gradient %dw, %w {param = "w", dmlc.of = "0"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %loss, %g : tensor<f32>, tensor<8x8xf32>
  }
}

// -----

// It fits: nothing is recomputed. But the weight that is gathered in every microbatch is read by the backward pass through a barrier, so
// that its second gather waits until the backward pass has begun; the mark of its gradient reads no value of it.
// CHECK-LABEL: func.func @regather
// CHECK: %h = dmlc.linear %x, %w
// CHECK-NOT: #re
// CHECK: %vw.bar0 = dmlc.barrier %w, %h
// CHECK: %dx = dmlc.matmul %dh, %vw.bar0
// CHECK: dmlc.gradient %dw, %w
builtin.module attributes {dmlc.mode = "train", dmlc.cluster = "h100", dmlc.train = {recompute = "auto"}} {
  func.func @regather(%x: tensor<4x8xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<8x8xf32> {dmlc.role = "param", dmlc.regather = "per-microbatch"}) -> (tensor<f32>, tensor<8x8xf32>, tensor<4x8xf32>) {
    %h = dmlc.linear %x, %w {dmlc.name = "h"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %loss = dmlc.reduce_sum %h {dims = array<i64: 0, 1>, dmlc.name = "loss"} : (tensor<4x8xf32>) -> tensor<f32>
    %dh = dmlc.full {value = 1.0, dmlc.name = "dh", dmlc.of = "1"} : () -> tensor<4x8xf32>
    %dx = dmlc.matmul %dh, %w {dmlc.name = "dx", dmlc.of = "0"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %dw = dmlc.contract %dh, %x {equation = "bj,bk->jk", dmlc.name = "dw", dmlc.of = "0"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %g = dmlc.gradient %dw, %w {param = "w", dmlc.of = "0"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %loss, %g, %dx : tensor<f32>, tensor<8x8xf32>, tensor<4x8xf32>
  }
}

// -----

// Nothing goes backward: there is nothing to do.
// CHECK-LABEL: func.func @inference
// CHECK-NOT: dmlc.barrier
builtin.module {
  func.func @inference(%x: tensor<4x8xf32>, %w: tensor<8x8xf32> {dmlc.role = "param"}) -> tensor<4x8xf32> {
    %h = dmlc.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    func.return %h : tensor<4x8xf32>
  }
}
