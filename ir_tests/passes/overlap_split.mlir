// RUN: dmlc opt %s --split-input-file --passes overlap-split,schedule --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes 'overlap-split{force, chunks=3}' --check

// The second layer's product and its reduction become chunks: while one chunk is reduced, the next is multiplied. 65 rows do not divide.
// CHECK-LABEL: func.func @main
// CHECK: dmlc.relu
// CHECK: dmlc.slice %{{.*}} {dim = 0 : i64
// CHECK: dmlc.matmul %{{.*}}, %w2
// CHECK: comm.all_reduce_start
// CHECK: dmlc.matmul %{{.*}}, %w2
// CHECK: comm.wait
// CHECK: dmlc.concat
builtin.module attributes {dmlc.spmd, dmlc.cluster = {device = {name = "toy", peak = {f32 = 100000000000 : i64}, memory = 1000000000 : i64, bandwidth = 1000000000000 : i64, launch = 1000000 : i64, source = "test"}, count = 4 : i64, links = [{name = "wire", span = 0 : i64, alpha = 1000 : i64, bandwidth = 1000000000 : i64, source = "test"}]}} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @main(%x: tensor<65x32xf32>, %w1: tensor<32x256xf32> {dmlc.global = array<i64: 32, 512>, dmlc.sharding = #dmlc.sharding<@mesh, [{}, {"model"}]>}, %b1: tensor<256xf32> {dmlc.global = array<i64: 512>, dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}]>}, %w2: tensor<256x64xf32> {dmlc.global = array<i64: 512, 64>, dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}, {}]>}, %b2: tensor<64xf32>) -> tensor<65x64xf32> {
    %a = dmlc.matmul %x, %w1 : (tensor<65x32xf32>, tensor<32x256xf32>) -> tensor<65x256xf32>
    %c = dmlc.add %a, %b1 : (tensor<65x256xf32>, tensor<256xf32>) -> tensor<65x256xf32>
    %d = dmlc.relu %c : (tensor<65x256xf32>) -> tensor<65x256xf32>
    %e = dmlc.matmul %d, %w2 : (tensor<65x256xf32>, tensor<256x64xf32>) -> tensor<65x64xf32>
    %r = comm.all_reduce %e {axes = ["model"], combiner = "sum"} : (tensor<65x64xf32>) -> tensor<65x64xf32>
    %o = dmlc.add %r, %b2 : (tensor<65x64xf32>, tensor<64xf32>) -> tensor<65x64xf32>
    func.return %o : tensor<65x64xf32>
  }
}

// -----

// A gather and the product behind it; the gather joins columns, so rows are free.
// CHECK-LABEL: func.func @gather
// CHECK: comm.all_gather_start
// CHECK: dmlc.matmul
// CHECK: comm.wait
// CHECK: dmlc.matmul
builtin.module attributes {dmlc.spmd, dmlc.cluster = {device = {name = "toy", peak = {f32 = 100000000000 : i64}, memory = 1000000000 : i64, bandwidth = 1000000000000 : i64, launch = 1000000 : i64, source = "test"}, count = 4 : i64, links = [{name = "wire", span = 0 : i64, alpha = 1000 : i64, bandwidth = 10000000000 : i64, source = "test"}]}} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @gather(%x: tensor<128x256xf32> {dmlc.global = array<i64: 128, 1024>, dmlc.sharding = #dmlc.sharding<@mesh, [{}, {"model"}]>}, %w: tensor<1024x512xf32>) -> tensor<128x512xf32> {
    %g = comm.all_gather %x {axes = ["model"], dims = array<i64: 1>, sizes = array<i64: 1024>, grains = array<i64: 1>} : (tensor<128x256xf32>) -> tensor<128x1024xf32>
    %y = dmlc.matmul %g, %w : (tensor<128x1024xf32>, tensor<1024x512xf32>) -> tensor<128x512xf32>
    func.return %y : tensor<128x512xf32>
  }
}

// -----

// Too small: a second start-up costs more than what could be hidden.
// CHECK: overlap-split: not split: chunks would take longer than what they hide
// CHECK-LABEL: func.func @small
// CHECK-NOT: dmlc.slice
// CHECK: comm.all_reduce %
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @small(%x: tensor<7x16xf32>, %w: tensor<16x16xf32>) -> tensor<7x16xf32> {
    %a = dmlc.matmul %x, %w : (tensor<7x16xf32>, tensor<16x16xf32>) -> tensor<7x16xf32>
    %r = comm.all_reduce %a {axes = ["model"], combiner = "sum"} : (tensor<7x16xf32>) -> tensor<7x16xf32>
    func.return %r : tensor<7x16xf32>
  }
}
