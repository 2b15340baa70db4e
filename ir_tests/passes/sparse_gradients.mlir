// RUN: dmlc opt %s --split-input-file --passes sparse-gradients | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes 'sparse-gradients{force}' --check
// RUN: dmlc opt %s --split-input-file --passes 'sparse-gradients{force}' | filecheck %s --check-prefix=FORCE

// A tied table: the dense part of its gradient is reduced while the rest is computed, the rows of both ranks are gathered and added.
// CHECK-LABEL: func.func @tied
// CHECK: %[[D:.*]] = dmlc.contract
// CHECK: %[[V:.*]] = comm.all_gather %{{.*}} {axes = ["data"], dims = array<i64: 0>, {{.*}} : (tensor<4x16x64xf32>) -> tensor<8x16x64xf32>
// CHECK: %[[I:.*]] = comm.all_gather %ids {axes = ["data"], dims = array<i64: 0>, {{.*}} : (tensor<4x16xi64>) -> tensor<8x16xi64>
// CHECK: %[[S:.*]] = dmlc.index_add %[[V]], %[[I]] {{.*}} -> tensor<50000x64xf32>
// CHECK: %[[R:.*]] = comm.all_reduce %[[D]] {axes = ["data"], combiner = "sum"
// CHECK: %[[T:.*]] = dmlc.add %[[R]], %[[S]]
// CHECK: func.return %[[T]]
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @tied(%h: tensor<64x50000xf32> {dmlc.global = array<i64: 128, 50000>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %x: tensor<64x64xf32> {dmlc.global = array<i64: 128, 64>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %d: tensor<4x16x64xf32> {dmlc.global = array<i64: 8, 16, 64>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}, {}]>}, %w: tensor<64x64xf32>, %ids: tensor<4x16xi64> {dmlc.global = array<i64: 8, 16>, dmlc.bound = 50000 : i64, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}) -> tensor<50000x64xf32> {
    %dense = dmlc.contract %h, %x {equation = "bv,bi->vi"} : (tensor<64x50000xf32>, tensor<64x64xf32>) -> tensor<50000x64xf32>
    %rows = dmlc.matmul %d, %w : (tensor<4x16x64xf32>, tensor<64x64xf32>) -> tensor<4x16x64xf32>
    %table = dmlc.index_add %rows, %ids : (tensor<4x16x64xf32>, tensor<4x16xi64>) -> tensor<50000x64xf32>
    %sum = dmlc.add %dense, %table : (tensor<50000x64xf32>, tensor<50000x64xf32>) -> tensor<50000x64xf32>
    %reduced = comm.all_reduce %sum {axes = ["data"], combiner = "sum"} : (tensor<50000x64xf32>) -> tensor<50000x64xf32>
    func.return %reduced : tensor<50000x64xf32>
  }
}

// -----

// Nothing but rows: no reduction is left.
// CHECK-LABEL: func.func @untied
// CHECK-NOT: comm.all_reduce
// CHECK: comm.all_gather
// CHECK: func.return
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=2]>} : () -> ()
  func.func @untied(%d: tensor<4x16x64xf32>, %ids: tensor<4x16xi64> {dmlc.bound = 50000 : i64}) -> tensor<50000x64xf32> {
    %table = dmlc.index_add %d, %ids : (tensor<4x16x64xf32>, tensor<4x16xi64>) -> tensor<50000x64xf32>
    %reduced = comm.all_reduce %table {axes = ["data", "model"], combiner = "sum"} : (tensor<50000x64xf32>) -> tensor<50000x64xf32>
    func.return %reduced : tensor<50000x64xf32>
  }
}

// -----

// More rows than the table has, a table that something else reads, another combination than a sum: all stay as they are.
// CHECK-LABEL: func.func @others
// CHECK-COUNT-3: comm.all_reduce
// CHECK-NOT: comm.all_gather
// FORCE-LABEL: func.func @others
// FORCE-COUNT-2: comm.all_gather
// FORCE-COUNT-2: comm.all_reduce
// FORCE-NOT: comm.all_gather
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @others(%d: tensor<4x16x64xf32>, %ids: tensor<4x16xi64> {dmlc.bound = 32 : i64}) -> (tensor<32x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>) {
    %small = dmlc.index_add %d, %ids : (tensor<4x16x64xf32>, tensor<4x16xi64>) -> tensor<32x64xf32>
    %a = comm.all_reduce %small {axes = ["data"], combiner = "sum"} : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %read = dmlc.index_add %d, %ids : (tensor<4x16x64xf32>, tensor<4x16xi64>) -> tensor<32x64xf32>
    %b = comm.all_reduce %read {axes = ["data"], combiner = "sum"} : (tensor<32x64xf32>) -> tensor<32x64xf32>
    %most = dmlc.index_add %d, %ids : (tensor<4x16x64xf32>, tensor<4x16xi64>) -> tensor<32x64xf32>
    %c = comm.all_reduce %most {axes = ["data"], combiner = "max"} : (tensor<32x64xf32>) -> tensor<32x64xf32>
    func.return %a, %b, %c, %read : tensor<32x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>, tensor<32x64xf32>
  }
}
