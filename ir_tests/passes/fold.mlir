// RUN: dmlc opt %s --split-input-file --passes 'fold{limit=64},dce' | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes 'fold{limit=64}' --check

// A weight that is only used transposed and scaled becomes an argument with a recipe; the loader finds its way back to w.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %x: tensor<4x16xf32>
// CHECK-SAME: %[[W:[^:]*]]: tensor<16x8xf32> {dmlc.role = "param", dmlc.derived = @derived}
// CHECK-NEXT: dmlc.matmul %x, %[[W]]
// CHECK: func.func private @derived(%w: tensor<8x16xf32> {dmlc.role = "param", dmlc.names = ["layer.weight"], dmlc.value = dense_resource<w>
// CHECK: dmlc.mul
// CHECK: dmlc.transpose
func.func @main(%x: tensor<4x16xf32> {dmlc.role = "input"}, %w: tensor<8x16xf32> {dmlc.role = "param", dmlc.names = ["layer.weight"], dmlc.value = dense_resource<w> : tensor<8x16xf32>}) -> tensor<4x8xf32> {
  %scale = dmlc.full {value = 0.125 : f64} : () -> tensor<f32>
  %s = dmlc.mul %w, %scale : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  %t = dmlc.transpose %s {perm = array<i64: 1, 0>} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %y = dmlc.matmul %x, %t : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// -----

// A table that is also read as it is would be stored twice, which the limit forbids.
// CHECK-LABEL: func.func @main
// CHECK-NOT: dmlc.derived
func.func @main(%x: tensor<4x16xf32> {dmlc.role = "input"}, %ids: tensor<4xi64> {dmlc.role = "input"}, %w: tensor<8x16xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<8x16xf32>}) -> (tensor<4x8xf32>, tensor<4x16xf32>) {
  %t = dmlc.transpose %w {perm = array<i64: 1, 0>} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %y = dmlc.matmul %x, %t : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %e = dmlc.embedding %w, %ids : (tensor<8x16xf32>, tensor<4xi64>) -> tensor<4x16xf32>
  func.return %y, %e : tensor<4x8xf32>, tensor<4x16xf32>
}

// -----

// The enlarged table stays an op, what it is made from is folded.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[D:[^:]*]]: tensor<4x1xf32> {dmlc.role = "buffer", dmlc.derived = @derived}
// CHECK-NEXT: %[[B:.*]] = dmlc.broadcast %[[D]]
// CHECK-NEXT: dmlc.add %x, %[[B]]
func.func @main(%x: tensor<4x64xf32> {dmlc.role = "input"}, %v: tensor<4x1xf32> {dmlc.role = "buffer", dmlc.value = dense_resource<v> : tensor<4x1xf32>}) -> tensor<4x64xf32> {
  %r = dmlc.sqrt %v : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %b = dmlc.broadcast %r : (tensor<4x1xf32>) -> tensor<4x64xf32>
  %y = dmlc.add %x, %b : (tensor<4x64xf32>, tensor<4x64xf32>) -> tensor<4x64xf32>
  func.return %y : tensor<4x64xf32>
}

// -----

// A program that trains reads its parameters each step, but tables stay tables.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[T:[^:]*]]: tensor<4xf32> {dmlc.role = "const", dmlc.derived = @derived}
// CHECK-NEXT: %[[W:.*]] = dmlc.exp %w
// CHECK-NEXT: dmlc.add %[[W]], %[[T]]
builtin.module attributes {dmlc.mode = "train"} {
  func.func @main(%w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>}, %table: tensor<4xf32> {dmlc.role = "const", dmlc.value = dense_resource<table> : tensor<4xf32>}) -> tensor<4xf32> {
    %a = dmlc.exp %w : (tensor<4xf32>) -> tensor<4xf32>
    %b = dmlc.exp %table : (tensor<4xf32>) -> tensor<4xf32>
    %c = dmlc.add %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %c : tensor<4xf32>
  }
}

// -----

// The evaluation program of a training step reads what is trained, too.
// CHECK-LABEL: func.func @main
// CHECK-NOT: dmlc.derived
// CHECK: dmlc.exp %w
// CHECK: dmlc.exp %running
builtin.module attributes {dmlc.mode = "eval"} {
  func.func @main(%w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>}, %running: tensor<4xf32> {dmlc.role = "buffer", dmlc.value = dense_resource<r> : tensor<4xf32>}) -> tensor<4xf32> {
    %a = dmlc.exp %w : (tensor<4xf32>) -> tensor<4xf32>
    %b = dmlc.exp %running : (tensor<4xf32>) -> tensor<4xf32>
    %c = dmlc.add %a, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %c : tensor<4xf32>
  }
}

// -----

// Random values and inputs, also those with a stored default, are never constants.
// CHECK-LABEL: func.func @main
// CHECK-NOT: dmlc.derived
// CHECK: dmlc.random_normal
// CHECK: dmlc.exp %given
func.func @main(%given: tensor<4xf32> {dmlc.role = "input", dmlc.value = dense_resource<default> : tensor<4xf32>}, %seed: tensor<i64> {dmlc.role = "seed"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %step = dmlc.full {value = 0 : i64} : () -> tensor<i64>
  %n = dmlc.random_normal %seed, %step {shape = array<i64: 4>, stream = 1 : i64} : (tensor<i64>, tensor<i64>) -> tensor<4xf32>
  %e = dmlc.exp %given : (tensor<4xf32>) -> tensor<4xf32>
  func.return %n, %e : tensor<4xf32>, tensor<4xf32>
}

// -----

// Arithmetic on plain numbers gives a number, unless it rounds.
// CHECK-LABEL: func.func @numbers
// CHECK-NEXT: %[[SUM:.*]] = dmlc.full {value = 7 : i64{{.*}}} : () -> tensor<3xi64>
// CHECK: %[[THIRD:.*]] = dmlc.div
// CHECK-NEXT: func.return %[[SUM]], %[[THIRD]]
func.func @numbers() -> (tensor<3xi64>, tensor<f32>) {
  %a = dmlc.full {value = 3 : i64} : () -> tensor<3xi64>
  %b = dmlc.full {value = 4 : i64} : () -> tensor<i64>
  %c = dmlc.add %a, %b : (tensor<3xi64>, tensor<i64>) -> tensor<3xi64>
  %one = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %three = dmlc.full {value = 3.0 : f64} : () -> tensor<f32>
  %third = dmlc.div %one, %three : (tensor<f32>, tensor<f32>) -> tensor<f32>
  func.return %c, %third : tensor<3xi64>, tensor<f32>
}

// -----

// The stored scalar lies in the file that dmlc.weights names: its bytes are at hand, so it is written into the program.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%x: tensor<4xf32> {dmlc.role = "input"}) -> tensor<4xf32>
// CHECK-NEXT: %[[S:.*]] = dmlc.full {value = 1.5 : f64{{.*}}} : () -> tensor<f32>
// CHECK-NEXT: dmlc.mul %x, %[[S]]
builtin.module attributes {dmlc.weights = "Inputs/fold.safetensors"} {
  func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %s: tensor<f32> {dmlc.role = "const", dmlc.value = dense_resource<scale> : tensor<f32>}) -> tensor<4xf32> {
    %y = dmlc.mul %x, %s : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

// A scalar that is trained stays an argument, though its bytes are at hand.
// CHECK-LABEL: func.func @main
// CHECK: dmlc.mul %x, %s
builtin.module attributes {dmlc.mode = "train", dmlc.weights = "Inputs/fold.safetensors"} {
  func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %s: tensor<f32> {dmlc.role = "param", dmlc.value = dense_resource<scale> : tensor<f32>}) -> tensor<4xf32> {
    %y = dmlc.mul %x, %s : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

// What callers may override stays, and so does what is computed from it.
// CHECK-LABEL: func.func @main
// CHECK: %[[T:.*]] = dmlc.neg %w
// CHECK-NEXT: %[[S:.*]] = dmlc.mul %[[T]], %s
// CHECK-NEXT: dmlc.mul %x, %[[S]]
builtin.module attributes {dmlc.weights = "Inputs/fold.safetensors"} {
  func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %w: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<w> : tensor<4xf32>, dmlc.overridable = true}, %s: tensor<f32> {dmlc.role = "const", dmlc.value = dense_resource<scale> : tensor<f32>, dmlc.overridable = true}) -> tensor<4xf32> {
    %t = dmlc.neg %w : (tensor<4xf32>) -> tensor<4xf32>
    %u = dmlc.mul %t, %s : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    %y = dmlc.mul %x, %u : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}

// -----

// One folded value is made of another that the program uses itself: its recipe reads the argument that the first became.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %scale: tensor<4xf32> {dmlc.role = "param", dmlc.derived = @derived}
// CHECK-SAME: %shift: tensor<4xf32> {dmlc.role = "param", dmlc.derived = @derived_1}
// CHECK-NEXT: %[[P:.*]] = dmlc.mul %x, %scale
// CHECK-NEXT: dmlc.sub %[[P]], %shift
// CHECK: func.func private @derived_1(%m: tensor<4xf32> {{.*}}, %scale: tensor<4xf32> {dmlc.role = "param", dmlc.derived = @derived}
func.func @main(%x: tensor<4xf32> {dmlc.role = "input"}, %v: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<v> : tensor<4xf32>}, %m: tensor<4xf32> {dmlc.role = "param", dmlc.value = dense_resource<m> : tensor<4xf32>}) -> tensor<4xf32> {
  %scale = dmlc.exp %v {dmlc.name = "scale"} : (tensor<4xf32>) -> tensor<4xf32>
  %p = dmlc.mul %x, %scale : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %shift = dmlc.mul %m, %scale {dmlc.name = "shift"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %y = dmlc.sub %p, %shift : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
