// RUN: dmlc opt %s --split-input-file --passes dce | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes dce --check

// What only an unused op used goes with it, random values too.
// CHECK-LABEL: func.func @chain
// CHECK-NEXT: func.return %x
func.func @chain(%x: tensor<4xf32>, %seed: tensor<i64> {dmlc.role = "seed"}, %step: tensor<i64>) -> tensor<4xf32> {
  %a = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  %n = dmlc.random_normal %seed, %step {shape = array<i64: 4>, stream = 1 : i64} : (tensor<i64>, tensor<i64>) -> tensor<4xf32>
  %b = dmlc.add %a, %n : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %x : tensor<4xf32>
}

// -----

// An op with one used result of two stays; inputs stay; a weight that nothing uses goes, and so does the recipe of another.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%x: tensor<9xf32> {dmlc.role = "input"}, %unused: tensor<2xf32> {dmlc.role = "input"})
// CHECK-NEXT: dmlc.topk
// CHECK-NOT: @recipe
func.func @main(%x: tensor<9xf32> {dmlc.role = "input"}, %unused: tensor<2xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>}, %d: tensor<4xf32> {dmlc.role = "param", dmlc.derived = @recipe}) -> tensor<3xi64> {
  %a, %b = dmlc.topk %x {k = 3 : i64, dim = 0 : i64} : (tensor<9xf32>) -> (tensor<3xf32>, tensor<3xi64>)
  func.return %b : tensor<3xi64>
}
func.func private @recipe(%w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>}) -> tensor<4xf32> {
  %y = dmlc.neg %w : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

// A program that trains keeps its parameters, and their recipes with them.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %w: tensor<4xf32> {dmlc.role = "param"
// CHECK-SAME: dmlc.derived = @recipe
// CHECK: func.func private @recipe
builtin.module attributes {dmlc.mode = "train"} {
  func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>}, %d: tensor<4xf32> {dmlc.role = "param", dmlc.derived = @recipe}) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
  func.func private @recipe(%w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>}) -> tensor<4xf32> {
    %y = dmlc.neg %w : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

// A collective runs on all its ranks or on none: start and wait go together.
// CHECK-LABEL: func.func @collective
// CHECK-NOT: comm.
// CHECK: func.return %x
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @collective(%x: tensor<4xf32>) -> tensor<4xf32> {
    %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<4xf32>) -> !comm.future<tensor<4xf32>>
    %y = comm.wait %f : (!comm.future<tensor<4xf32>>) -> tensor<4xf32>
    func.return %x : tensor<4xf32>
  }
}

// -----

// Callers may give an unused constant that the model lets them override.
// CHECK-LABEL: func.func @overridable
// CHECK-SAME: %w: tensor<4xf32>
// CHECK-NOT: %v: tensor
builtin.module {
  func.func @overridable(%x: tensor<4xf32>, %w: tensor<4xf32> {dmlc.role = "const", dmlc.value = dense_resource<w> : tensor<4xf32>, dmlc.overridable = true}, %v: tensor<4xf32> {dmlc.role = "const", dmlc.value = dense_resource<v> : tensor<4xf32>}) -> tensor<4xf32> {
    func.return %x : tensor<4xf32>
  }
}
