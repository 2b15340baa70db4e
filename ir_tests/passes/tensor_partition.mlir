// RUN: dmlc opt %s --split-input-file --passes tensor-partition | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes tensor-partition,schedule | filecheck %s --check-prefix=ORDER
// RUN: dmlc opt %s --split-input-file --passes 'tensor-partition{chunks=3}' --check

// A large gradient nobody waits for, and a small reduction that the rest of the program needs: the large one is cut, and the small
// one goes between its chunks.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-2: comm.all_reduce %{{.*}} {axes = ["data"], combiner = "sum"{{.*}}dmlc.id = "0.c
// CHECK: dmlc.concat %big.0, %big.1
// ORDER-LABEL: func.func @main
// ORDER: comm.all_reduce_start %{{.*}} {axes = ["data"], combiner = "sum"{{.*}}dmlc.id = "0.c0"
// ORDER: comm.all_reduce{{.*}}tensor<128xf32>
// ORDER: comm.all_reduce_start %{{.*}} {axes = ["data"], combiner = "sum"{{.*}}dmlc.id = "0.c1"
builtin.module attributes {dmlc.spmd, dmlc.cluster = {device = {name = "toy", peak = {f32 = 100000000000 : i64}, memory = 1000000000 : i64, bandwidth = 1000000000000 : i64, launch = 1000 : i64, source = "test"}, count = 4 : i64, links = [{name = "wire", span = 0 : i64, alpha = 1000 : i64, bandwidth = 10000000000 : i64, source = "test"}]}} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @main(%g: tensor<2048x96xf32>, %x: tensor<128x128xf32>) -> (tensor<2048x96xf32>, tensor<128x128xf32>) {
    %big = comm.all_reduce %g {axes = ["data"], combiner = "sum", dmlc.name = "big"} : (tensor<2048x96xf32>) -> tensor<2048x96xf32>
    %a = dmlc.matmul %x, %x : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    %b = dmlc.reduce_sum %a {dims = array<i64: 0>} : (tensor<128x128xf32>) -> tensor<128xf32>
    %small = comm.all_reduce %b {axes = ["data"], combiner = "sum", dmlc.name = "small"} : (tensor<128xf32>) -> tensor<128xf32>
    %t = dmlc.add %x, %small : (tensor<128x128xf32>, tensor<128xf32>) -> tensor<128x128xf32>
    %u = dmlc.matmul %t, %t : (tensor<128x128xf32>, tensor<128x128xf32>) -> tensor<128x128xf32>
    func.return %big, %u : tensor<2048x96xf32>, tensor<128x128xf32>
  }
}

// -----

// Nothing more urgent waits behind it: it stays whole.
// CHECK-LABEL: func.func @alone
// CHECK-NOT: dmlc.slice
// CHECK-COUNT-1: comm.all_reduce
// ORDER-LABEL: func.func @alone
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @alone(%g: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %r = comm.all_reduce %g {axes = ["data"], combiner = "sum"} : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %y = dmlc.exp %r : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    func.return %y : tensor<1024x1024xf32>
  }
}

// -----

// The backward pass makes %b's gradient first, but the next forward pass reads %a first: behind what both updates share, its own and its gather come first.
// CHECK-LABEL: func.func @order
// CHECK: %na = dmlc.sub
// CHECK: %ga = comm.all_gather %na
// CHECK: %nb = dmlc.sub
// CHECK: %gb = comm.all_gather %nb
// ORDER-LABEL: func.func @order
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @order(%x: tensor<64x64xf32>, %a: tensor<64x64xf32> {dmlc.role = "param"}, %b: tensor<64x64xf32> {dmlc.role = "param"}, %sa: tensor<16x64xf32> {dmlc.role = "state", dmlc.of = "a"}, %sb: tensor<16x64xf32> {dmlc.role = "state", dmlc.of = "b"}) -> (tensor<64x64xf32> {dmlc.updates = "b"}, tensor<64x64xf32> {dmlc.updates = "a"}) {
    %h = dmlc.matmul %x, %a : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %y = dmlc.matmul %h, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %db = dmlc.contract %h, %y {equation = "bi,bj->ij", dmlc.of = "1"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %rb = comm.reduce_scatter %db {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 64>, grains = array<i64: 1>} : (tensor<64x64xf32>) -> tensor<16x64xf32>
    %dh = dmlc.matmul %y, %b {dmlc.of = "1"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %da = dmlc.contract %x, %dh {equation = "bi,bj->ij", dmlc.of = "0"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %ra = comm.reduce_scatter %da {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 64>, grains = array<i64: 1>} : (tensor<64x64xf32>) -> tensor<16x64xf32>
    %q = dmlc.add %ra, %rb {dmlc.phase = "update"} : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    %c = dmlc.reduce_sum %q {dims = array<i64: 0, 1>, dmlc.phase = "update"} : (tensor<16x64xf32>) -> tensor<f32>
    %nb = dmlc.sub %sb, %c {dmlc.phase = "update", dmlc.name = "nb"} : (tensor<16x64xf32>, tensor<f32>) -> tensor<16x64xf32>
    %gb = comm.all_gather %nb {axes = ["data"], dims = array<i64: 0>, sizes = array<i64: 64>, grains = array<i64: 1>, dmlc.name = "gb"} : (tensor<16x64xf32>) -> tensor<64x64xf32>
    %na = dmlc.sub %sa, %c {dmlc.phase = "update", dmlc.name = "na"} : (tensor<16x64xf32>, tensor<f32>) -> tensor<16x64xf32>
    %ga = comm.all_gather %na {axes = ["data"], dims = array<i64: 0>, sizes = array<i64: 64>, grains = array<i64: 1>, dmlc.name = "ga"} : (tensor<16x64xf32>) -> tensor<64x64xf32>
    func.return %gb, %ga : tensor<64x64xf32>, tensor<64x64xf32>
  }
}
