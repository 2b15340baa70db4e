// RUN: dmlc opt %s --split-input-file --passes tensor-fusion | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes tensor-fusion --check

// Three small gradients: one start-up instead of three.
// CHECK-LABEL: func.func @gradients
// CHECK-COUNT-2: dmlc.contract
// CHECK: comm.all_reduce %{{.*}}, %{{.*}}, %{{.*}} {axes = ["data"], combiner = "sum"
// CHECK-NOT: comm.all_reduce
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @gradients(%x: tensor<64x256xf32> {dmlc.global = array<i64: 256, 256>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<256x256xf32>, %h: tensor<64x256xf32> {dmlc.global = array<i64: 256, 256>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<256x256xf32>, tensor<256x256xf32>, tensor<256xf32>) {
    %g2 = dmlc.contract %h, %x {equation = "bi,bj->ij"} : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
    %r2 = comm.all_reduce %g2 {axes = ["data"], combiner = "sum"} : (tensor<256x256xf32>) -> tensor<256x256xf32>
    %b2 = dmlc.reduce_sum %h {dims = array<i64: 0>} : (tensor<64x256xf32>) -> tensor<256xf32>
    %rb = comm.all_reduce %b2 {axes = ["data"], combiner = "sum"} : (tensor<256xf32>) -> tensor<256xf32>
    %d = dmlc.matmul %h, %w : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
    %g1 = dmlc.contract %d, %x {equation = "bi,bj->ij"} : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
    %r1 = comm.all_reduce %g1 {axes = ["data"], combiner = "sum"} : (tensor<256x256xf32>) -> tensor<256x256xf32>
    func.return %r1, %r2, %rb : tensor<256x256xf32>, tensor<256x256xf32>, tensor<256xf32>
  }
}

// -----

// Kind, dtype and axes keep apart what must not mix; the one whose result is read before the last is made is not merged with it.
// The reader of a bucket's first member moves behind the bucket.
// CHECK-LABEL: func.func @keys
// CHECK-DAG: %{{.*}}, %{{.*}} = comm.reduce_scatter %a, %d {axes = ["data"], combiner = "sum", dims = array<i64: 0, 0>
// CHECK-DAG: comm.reduce_scatter %c {axes = ["data"]
// CHECK-DAG: comm.reduce_scatter %e {axes = ["model"]
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=2]>} : () -> ()
  func.func @keys(%a: tensor<8x8xbf16>, %b: tensor<8x8xbf16>, %c: tensor<8x8xf32>, %d: tensor<6x8xbf16>, %e: tensor<8x8xbf16>) -> (tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<4x8xf32>, tensor<3x8xbf16>, tensor<4x8xbf16>) {
    %0 = comm.reduce_scatter %a {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 8>, grains = array<i64: 1>} : (tensor<8x8xbf16>) -> tensor<4x8xbf16>
    %1 = dmlc.neg %0 : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
    %2 = comm.all_reduce %b {axes = ["data"], combiner = "sum"} : (tensor<8x8xbf16>) -> tensor<8x8xbf16>
    %3 = comm.reduce_scatter %c {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 8>, grains = array<i64: 1>} : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %4 = comm.reduce_scatter %d {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 6>, grains = array<i64: 1>} : (tensor<6x8xbf16>) -> tensor<3x8xbf16>
    %5 = comm.reduce_scatter %e {axes = ["model"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 8>, grains = array<i64: 1>} : (tensor<8x8xbf16>) -> tensor<4x8xbf16>
    func.return %1, %2, %3, %4, %5 : tensor<4x8xbf16>, tensor<8x8xbf16>, tensor<4x8xf32>, tensor<3x8xbf16>, tensor<4x8xbf16>
  }
}

// -----

// Each reduction reads the one before: there is nothing to merge.
// CHECK-LABEL: func.func @chain
// CHECK-COUNT-2: comm.all_reduce %{{[^,]*}} {
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @chain(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %r = comm.all_reduce %x {axes = ["data"], combiner = "sum"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %s = dmlc.exp %r : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %t = comm.all_reduce %s {axes = ["data"], combiner = "sum"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %t : tensor<8x8xf32>
  }
}
