// RUN: dmlc opt %s --split-input-file --passes plan --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes plan,plan --remarks | filecheck %s --check-prefix=TWICE
// RUN: dmlc opt %s --split-input-file --passes plan,partition,mask-elim --check

// An explicit tp=4: the first matrix is split by columns, the second by rows, and what lies between needs no traffic. The second-best plan
// and the gap to the proven bound are on the module.
// CHECK: dmlc.plan = {dp = 1 : i64, tp = 4 : i64, price = [[PRICE:[0-9]+]] : i64, bound = [[PRICE]] : i64, gap = 0 : i64, second = {plan = "dp=1,tp=4", price = {{[0-9]+}} : i64}}
// CHECK: dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>}
// CHECK-LABEL: func.func @tensor_parallel
// CHECK-SAME: %x: tensor<64x512xf32> {dmlc.batch_dim = 0 : i64, dmlc.sharding = #dmlc.sharding<@mesh, [{}, {}]>}
// CHECK-SAME: %w1: tensor<512x2048xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{}, {"model"}]>}
// CHECK-SAME: %b1: tensor<2048xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}]>}
// CHECK-SAME: %w2: tensor<2048x512xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>}
// CHECK: dmlc.matmul %x, %w1 {dmlc.place = {j = ["model"]}}
// CHECK: dmlc.add %{{.*}}, %b1 {dmlc.place = {e0 = ["model"]}}
// CHECK: dmlc.relu %{{.*}} {dmlc.place = {e0 = ["model"]}}
// CHECK: dmlc.matmul %{{.*}}, %w2 {dmlc.place = {k = ["model"]}}
// What has been placed, here or by hand, is left alone.
// TWICE: remark: plan: declined: the program is placed already
// TWICE-LABEL: func.func @tensor_parallel
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, plan = "tp=4"}} {
  func.func @tensor_parallel(%x: tensor<64x512xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<512x2048xf32> {dmlc.role = "param"}, %b1: tensor<2048xf32> {dmlc.role = "param"}, %w2: tensor<2048x512xf32> {dmlc.role = "param"}, %b2: tensor<512xf32> {dmlc.role = "param"}) -> tensor<64x512xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x512xf32>, tensor<512x2048xf32>) -> tensor<64x2048xf32>
    %c = dmlc.add %a, %b1 : (tensor<64x2048xf32>, tensor<2048xf32>) -> tensor<64x2048xf32>
    %h = dmlc.relu %c : (tensor<64x2048xf32>) -> tensor<64x2048xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x2048xf32>, tensor<2048x512xf32>) -> tensor<64x512xf32>
    %y = dmlc.add %d, %b2 : (tensor<64x512xf32>, tensor<512xf32>) -> tensor<64x512xf32>
    func.return %y : tensor<64x512xf32>
  }
}

// -----

// Both kinds: `data` splits the batch factor and nothing else, `model` never does.
// CHECK: dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=2]>}
// CHECK-LABEL: func.func @both
// CHECK-SAME: dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>
// CHECK: dmlc.matmul %x, %w1 {dmlc.place = {i = ["data"], j = ["model"]}}
// CHECK: dmlc.relu %{{.*}} {dmlc.place = {e0 = ["model"], e1 = ["data"]}}
// CHECK: dmlc.matmul %{{.*}}, %w2 {dmlc.place = {i = ["data"], k = ["model"]}}
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, plan = "dp=2,tp=2"}} {
  func.func @both(%x: tensor<64x512xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<512x2048xf32> {dmlc.role = "param"}, %w2: tensor<2048x512xf32> {dmlc.role = "param"}) -> tensor<64x512xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x512xf32>, tensor<512x2048xf32>) -> tensor<64x2048xf32>
    %h = dmlc.relu %a : (tensor<64x2048xf32>) -> tensor<64x2048xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x2048xf32>, tensor<2048x512xf32>) -> tensor<64x512xf32>
    func.return %d : tensor<64x512xf32>
  }
}

// -----

// A sum over the batch stays unreduced through what is linear in it; a maximum has to be completed first.
// CHECK-LABEL: func.func @over_the_batch
// CHECK: dmlc.reduce_sum {{.*}}dmlc.place = {d0 = ["data"]}
// CHECK-NEXT: dmlc.matmul %{{.*}}, %w {dmlc.place = {linear = {data = 0 : i64}}}
// CHECK-NEXT: dmlc.reduce_max {{.*}}dmlc.place = {d0 = ["data"]}
// CHECK-NEXT: dmlc.matmul %{{.*}}, %w : (tensor
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 2 : i64, plan = "dp=2"}} {
  func.func @over_the_batch(%x: tensor<8x5x12xf32> {dmlc.batch_dim = 0 : i64}, %w: tensor<12x3xf32> {dmlc.role = "param"}) -> (tensor<5x3xf32>, tensor<5x3xf32>) {
    %s = dmlc.reduce_sum %x {dims = array<i64: 0>} : (tensor<8x5x12xf32>) -> tensor<5x12xf32>
    %a = dmlc.matmul %s, %w : (tensor<5x12xf32>, tensor<12x3xf32>) -> tensor<5x3xf32>
    %m = dmlc.reduce_max %x {dims = array<i64: 0>} : (tensor<8x5x12xf32>) -> tensor<5x12xf32>
    %b = dmlc.matmul %m, %w : (tensor<5x12xf32>, tensor<12x3xf32>) -> tensor<5x3xf32>
    func.return %a, %b : tensor<5x3xf32>, tensor<5x3xf32>
  }
}

// -----

// The automatic plan for a large batch and small matrices splits the batch: no communication at all.
// CHECK: dmlc.plan = {dp = 4 : i64, tp = 1 : i64
// CHECK-LABEL: func.func @automatic
// CHECK-SAME: %w1: tensor<128x256xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{}, {}]>}
// CHECK: dmlc.matmul %x, %w1 {dmlc.place = {i = ["data"]}}
// CHECK: dmlc.matmul %{{.*}}, %w2 {dmlc.place = {i = ["data"]}}
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64}} {
  func.func @automatic(%x: tensor<4096x128xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<128x256xf32> {dmlc.role = "param"}, %w2: tensor<256x128xf32> {dmlc.role = "param"}) -> tensor<4096x128xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<4096x128xf32>, tensor<128x256xf32>) -> tensor<4096x256xf32>
    %h = dmlc.relu %a : (tensor<4096x256xf32>) -> tensor<4096x256xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<4096x256xf32>, tensor<256x128xf32>) -> tensor<4096x128xf32>
    func.return %d : tensor<4096x128xf32>
  }
}

// -----

// Few rows: still the batch is split, and every rank holds both matrices (256 KiB).
// CHECK: dmlc.plan = {dp = 4 : i64, tp = 1 : i64
// CHECK-LABEL: func.func @unlimited
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64}} {
  func.func @unlimited(%x: tensor<64x128xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<128x256xf32> {dmlc.role = "param"}, %w2: tensor<256x128xf32> {dmlc.role = "param"}) -> tensor<64x128xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    %h = dmlc.relu %a : (tensor<64x256xf32>) -> tensor<64x256xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x256xf32>, tensor<256x128xf32>) -> tensor<64x128xf32>
    func.return %d : tensor<64x128xf32>
  }
}

// -----

// The same program with memory for little more than half of the matrices: another plan, whose matrices are split.
// CHECK: dmlc.plan = {dp = {{[0-9]}} : i64, tp = {{[24]}} : i64
// CHECK-LABEL: func.func @limited
// CHECK-SAME: %w1: tensor<128x256xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{{.*}}{"model"}{{.*}}]>}
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, memory = 250000 : i64}} {
  func.func @limited(%x: tensor<64x128xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<128x256xf32> {dmlc.role = "param"}, %w2: tensor<256x128xf32> {dmlc.role = "param"}) -> tensor<64x128xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    %h = dmlc.relu %a : (tensor<64x256xf32>) -> tensor<64x256xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x256xf32>, tensor<256x128xf32>) -> tensor<64x128xf32>
    func.return %d : tensor<64x128xf32>
  }
}

// -----

// An MLP width that four ranks do not divide is split all the same, 251 of 1003 columns a rank.
// CHECK-LABEL: func.func @uneven
// CHECK-SAME: %w1: tensor<512x1003xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{}, {"model"}]>}
// CHECK: dmlc.matmul %x, %w1 {dmlc.place = {j = ["model"]}}
// CHECK: dmlc.matmul %{{.*}}, %w2 {dmlc.place = {k = ["model"]}}
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64, plan = "tp=4"}} {
  func.func @uneven(%x: tensor<64x512xf32> {dmlc.batch_dim = 0 : i64}, %w1: tensor<512x1003xf32> {dmlc.role = "param"}, %w2: tensor<1003x128xf32> {dmlc.role = "param"}) -> tensor<64x128xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<64x512xf32>, tensor<512x1003xf32>) -> tensor<64x1003xf32>
    %h = dmlc.gelu %a : (tensor<64x1003xf32>) -> tensor<64x1003xf32>
    %d = dmlc.matmul %h, %w2 : (tensor<64x1003xf32>, tensor<1003x128xf32>) -> tensor<64x128xf32>
    func.return %d : tensor<64x128xf32>
  }
}

// -----

// 12 heads of 64 on 8 ranks: two heads a rank would be a sixth of the work instead of an eighth, which the bound forbids; what is gathered is said.
// CHECK: remark: plan: 'dmlc.transpose' runs whole on every rank, its operand tensor<2x12x16x64xf32> gathered over the model axis
// CHECK-LABEL: func.func @heads
// CHECK: dmlc.attention %{{.*}} {scale = 0.125 : f64, dmlc.place = {h = ["model"]}}
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 8 : i64, plan = "tp=8"}} {
  func.func @heads(%x: tensor<2x16x768xf32> {dmlc.batch_dim = 0 : i64}, %wq: tensor<768x768xf32> {dmlc.role = "param"}, %wo: tensor<768x768xf32> {dmlc.role = "param"}) -> tensor<2x16x768xf32> {
    %q = dmlc.linear %x, %wq : (tensor<2x16x768xf32>, tensor<768x768xf32>) -> tensor<2x16x768xf32>
    %r = dmlc.reshape %q : (tensor<2x16x768xf32>) -> tensor<2x16x12x64xf32>
    %t = dmlc.transpose %r {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x16x12x64xf32>) -> tensor<2x12x16x64xf32>
    %a = dmlc.attention %t, %t, %t {scale = 0.125 : f64} : (tensor<2x12x16x64xf32>, tensor<2x12x16x64xf32>, tensor<2x12x16x64xf32>) -> tensor<2x12x16x64xf32>
    %b = dmlc.transpose %a {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x12x16x64xf32>) -> tensor<2x16x12x64xf32>
    %c = dmlc.reshape %b : (tensor<2x16x12x64xf32>) -> tensor<2x16x768xf32>
    %y = dmlc.linear %c, %wo : (tensor<2x16x768xf32>, tensor<768x768xf32>) -> tensor<2x16x768xf32>
    func.return %y : tensor<2x16x768xf32>
  }
}

// -----

// The same with slack: whole heads stay together from the first product to the last, by the grain of 64.
// CHECK-LABEL: func.func @heads_with_slack
// CHECK-SAME: dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}], grains=[64, 1]>
// CHECK: dmlc.linear %x, %wq {dmlc.place = {j = ["model"], grains = {j = 64 : i64}}}
// CHECK: dmlc.attention %{{.*}} {scale = 0.125 : f64, dmlc.place = {h = ["model"]}}
// CHECK: dmlc.linear %{{.*}}, %wo {dmlc.place = {k = ["model"], grains = {k = 64 : i64}}}
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 8 : i64, plan = "tp=8", slack = 0.5 : f64}} {
  func.func @heads_with_slack(%x: tensor<2x16x768xf32> {dmlc.batch_dim = 0 : i64}, %wq: tensor<768x768xf32> {dmlc.role = "param"}, %wo: tensor<256x768xf32> {dmlc.role = "param"}) -> tensor<2x16x256xf32> {
    %q = dmlc.linear %x, %wq : (tensor<2x16x768xf32>, tensor<768x768xf32>) -> tensor<2x16x768xf32>
    %r = dmlc.reshape %q : (tensor<2x16x768xf32>) -> tensor<2x16x12x64xf32>
    %t = dmlc.transpose %r {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x16x12x64xf32>) -> tensor<2x12x16x64xf32>
    %a = dmlc.attention %t, %t, %t {scale = 0.125 : f64} : (tensor<2x12x16x64xf32>, tensor<2x12x16x64xf32>, tensor<2x12x16x64xf32>) -> tensor<2x12x16x64xf32>
    %b = dmlc.transpose %a {perm = array<i64: 0, 2, 1, 3>} : (tensor<2x12x16x64xf32>) -> tensor<2x16x12x64xf32>
    %c = dmlc.reshape %b : (tensor<2x16x12x64xf32>) -> tensor<2x16x768xf32>
    %y = dmlc.linear %c, %wo : (tensor<2x16x768xf32>, tensor<256x768xf32>) -> tensor<2x16x256xf32>
    func.return %y : tensor<2x16x256xf32>
  }
}

// -----

// Nothing can be split: the devices replicate, and a remark says so. One device needs no place either, and no remark.
// CHECK: plan.mlir:{{[0-9]+}}:3: remark: plan: all 4 devices do the same work: no op can be split
// CHECK-LABEL: func.func @replicated
// CHECK-NOT: dmlc.place
// CHECK: return
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 4 : i64}} {
  func.func @replicated(%x: tensor<3xf32>) -> tensor<3xf32> {
    %a, %i = dmlc.sort %x {dim = 0 : i64, descending = false} : (tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi64>)
    func.return %a : tensor<3xf32>
  }
}

// -----

// CHECK-NOT: remark
// CHECK-LABEL: func.func @alone
// CHECK-NOT: dmlc.place
// CHECK: return
builtin.module attributes {dmlc.cluster = "h100", dmlc.request = {devices = 1 : i64}} {
  func.func @alone(%x: tensor<8x8xf32> {dmlc.batch_dim = 0 : i64}, %w: tensor<8x8xf32> {dmlc.role = "param"}) -> tensor<8x8xf32> {
    %a = dmlc.matmul %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %a : tensor<8x8xf32>
  }
}
