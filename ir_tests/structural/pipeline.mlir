// RUN: dmlc opt %s --split-input-file | filecheck %s
// RUN: dmlc opt %s --split-input-file --generic | dmlc opt - --split-input-file | filecheck %s

// Two stages, two microbatches; the result lives on the ranks of stage 1, which also split the batch over `data`.
// CHECK-LABEL: func.func @stages
// CHECK-SAME: dmlc.stage = ["pipe", 1 : i64]
// CHECK: pipe.schedule {axis = "pipe"} {
// CHECK: comm.send %{{.*}} {axis = "pipe", to = 1 : i64, tag = 0 : i64} : (tensor<2x6xf64>) -> ()
// CHECK: comm.send %{{.*}} {axis = "pipe", to = 1 : i64, tag = 1 : i64}
// CHECK: }, {
// CHECK: comm.recv {axis = "pipe", source = 0 : i64, tag = 0 : i64} : () -> tensor<2x6xf64>
// CHECK: comm.recv {axis = "pipe", source = 0 : i64, tag = 1 : i64}
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "pipe"=2]>} : () -> ()
  func.func @stages(%x: tensor<4x5xf64> {dmlc.role = "input", dmlc.global = array<i64: 7, 5>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %w0: tensor<5x6xf64> {dmlc.role = "param"}, %w1: tensor<6x3xf64> {dmlc.role = "param"}) -> (tensor<4x3xf64> {dmlc.name = "y", dmlc.stage = ["pipe", 1 : i64], dmlc.global = array<i64: 7, 3>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}) {
    %none = dmlc.full {value = 0.0 : f64} : () -> tensor<4x3xf64>
    %y = pipe.schedule {axis = "pipe"} {
      %x0 = dmlc.slice %x {dim = 0 : i64, start = 0 : i64, stop = 2 : i64} : (tensor<4x5xf64>) -> tensor<2x5xf64>
      %a0 = dmlc.matmul %x0, %w0 : (tensor<2x5xf64>, tensor<5x6xf64>) -> tensor<2x6xf64>
      %h0 = dmlc.relu %a0 : (tensor<2x6xf64>) -> tensor<2x6xf64>
      comm.send %h0 {axis = "pipe", to = 1 : i64, tag = 0 : i64} : (tensor<2x6xf64>) -> ()
      %x1 = dmlc.slice %x {dim = 0 : i64, start = 2 : i64, stop = 4 : i64} : (tensor<4x5xf64>) -> tensor<2x5xf64>
      %a1 = dmlc.matmul %x1, %w0 : (tensor<2x5xf64>, tensor<5x6xf64>) -> tensor<2x6xf64>
      %h1 = dmlc.relu %a1 : (tensor<2x6xf64>) -> tensor<2x6xf64>
      comm.send %h1 {axis = "pipe", to = 1 : i64, tag = 1 : i64} : (tensor<2x6xf64>) -> ()
      dmlc.yield %none : (tensor<4x3xf64>) -> ()
    }, {
      %r0 = comm.recv {axis = "pipe", source = 0 : i64, tag = 0 : i64} : () -> tensor<2x6xf64>
      %y0 = dmlc.matmul %r0, %w1 : (tensor<2x6xf64>, tensor<6x3xf64>) -> tensor<2x3xf64>
      %r1 = comm.recv {axis = "pipe", source = 0 : i64, tag = 1 : i64} : () -> tensor<2x6xf64>
      %y1 = dmlc.matmul %r1, %w1 : (tensor<2x6xf64>, tensor<6x3xf64>) -> tensor<2x3xf64>
      %both = dmlc.concat %y0, %y1 {dim = 0 : i64} : (tensor<2x3xf64>, tensor<2x3xf64>) -> tensor<4x3xf64>
      dmlc.yield %both : (tensor<4x3xf64>) -> ()
    } : () -> tensor<4x3xf64>
    func.return %y : tensor<4x3xf64>
  }
}

// -----

// The same on one rank.
// CHECK-LABEL: func.func @plain
func.func @plain(%x: tensor<7x5xf64>, %w0: tensor<5x6xf64> {dmlc.role = "param"}, %w1: tensor<6x3xf64> {dmlc.role = "param"}) -> (tensor<7x3xf64> {dmlc.name = "y"}) {
  %a = dmlc.matmul %x, %w0 : (tensor<7x5xf64>, tensor<5x6xf64>) -> tensor<7x6xf64>
  %h = dmlc.relu %a : (tensor<7x6xf64>) -> tensor<7x6xf64>
  %y = dmlc.matmul %h, %w1 : (tensor<7x6xf64>, tensor<6x3xf64>) -> tensor<7x3xf64>
  func.return %y : tensor<7x3xf64>
}
