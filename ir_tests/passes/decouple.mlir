// RUN: dmlc opt %s --split-input-file --passes decouple | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes decouple,partition | filecheck %s --check-prefix=RANK
// RUN: dmlc opt %s --split-input-file --passes decouple --check

// The gradient and the momentum lie in parts, so the parameter is to rest in the same part; it is gathered before its first use instead of
// at the end of the step, and the result is the part.
// CHECK-LABEL: func.func @step
// CHECK-SAME: %w: tensor<8x8xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"data"}, {}]>, dmlc.regather = "per-microbatch", dmlc.kept = unit}
// CHECK-SAME: dmlc.updates = "w", dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}
// RANK-LABEL: func.func @step
// RANK: comm.all_gather %w
// RANK: dmlc.linear
// RANK: comm.reduce_scatter
// RANK-NOT: comm.all_gather
// RANK: func.return
builtin.module attributes {dmlc.mode = "train", dmlc.train = {decouple = true}} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @step(%x: tensor<16x8xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<8x8xf32> {dmlc.role = "param"}, %m: tensor<8x8xf32> {dmlc.role = "state", dmlc.of = "w", dmlc.storage = #dmlc.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<8x8xf32> {dmlc.updates = "w", dmlc.sharding = #dmlc.sharding<@mesh, [{}, {}]>}, tensor<8x8xf32> {dmlc.updates = "m", dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}) {
    %h = dmlc.linear %x, %w {dmlc.place = {e0 = ["data"]}, dmlc.name = "h"} : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %dw = dmlc.contract %h, %x {equation = "bj,bk->jk", dmlc.of = "0", dmlc.place = {b = ["data"]}, dmlc.name = "dw"} : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %g = dmlc.gradient %dw, %w {param = "w", dmlc.of = "0", dmlc.storage = #dmlc.sharding<@mesh, [{"data"}, {}]>, dmlc.name = "g"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %v = dmlc.add %m, %g {dmlc.phase = "update", dmlc.place = {e1 = ["data"]}, dmlc.name = "v"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %n = dmlc.sub %w, %v {dmlc.phase = "update", dmlc.place = {e1 = ["data"]}, dmlc.name = "n"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %n, %v : tensor<8x8xf32>, tensor<8x8xf32>
  }
}

// -----

// Every rank updates the whole parameter: there is nothing to gather.
// CHECK-LABEL: func.func @whole
// CHECK-NOT: dmlc.regather
// RANK-LABEL: func.func @whole
// RANK-NOT: comm.all_gather
builtin.module attributes {dmlc.mode = "train", dmlc.train = {decouple = true}} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @whole(%x: tensor<16x8xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<8x8xf32> {dmlc.role = "param"}) -> (tensor<8x8xf32> {dmlc.updates = "w", dmlc.sharding = #dmlc.sharding<@mesh, [{}, {}]>}) {
    %h = dmlc.linear %x, %w {dmlc.place = {e0 = ["data"]}} : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
    %dw = dmlc.contract %h, %x {equation = "bj,bk->jk", dmlc.of = "0", dmlc.place = {b = ["data"]}} : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %g = dmlc.gradient %dw, %w {param = "w", dmlc.of = "0"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %n = dmlc.sub %w, %g {dmlc.phase = "update"} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %n : tensor<8x8xf32>
  }
}
