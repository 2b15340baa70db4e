// RUN: dmlc opt %s --split-input-file --passes loss | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes loss --check

// Cross entropy of the first output and a new input behind the others. Merged leading dims are taken apart, so that the batch stays a dim.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%x: tensor<6x3x4xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %target: tensor<6x3xi64> {dmlc.role = "input", dmlc.range = array<i64: 0, 5>, dmlc.batch_dim = 0 : i64}, %w:
// CHECK-SAME: -> (tensor<f32> {dmlc.name = "loss"})
// CHECK: %[[ROWS:.*]] = dmlc.cross_entropy %{{.*}}, %target {ignore = -1 : i64, label_smoothing = 0.1 : f64
// CHECK: %[[COUNT:.*]] = dmlc.reduce_sum
// CHECK: %[[SUM:.*]] = dmlc.reduce_sum %[[ROWS]]
// CHECK: %[[DIVISOR:.*]] = dmlc.maximum %[[COUNT]]
// CHECK: dmlc.div %[[SUM]], %[[DIVISOR]]
builtin.module attributes {dmlc.mode = "train", dmlc.train = {loss = "cross-entropy", label_smoothing = 0.1 : f64, ignore = -1 : i64}} {
  func.func @main(%x: tensor<6x3x4xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<5x4xf32> {dmlc.role = "param"}) -> (tensor<18x5xf32> {dmlc.name = "logits"}, tensor<6x3x5xf32> {dmlc.name = "hidden"}) {
    %h = dmlc.linear %x, %w : (tensor<6x3x4xf32>, tensor<5x4xf32>) -> tensor<6x3x5xf32>
    %f = dmlc.reshape %h : (tensor<6x3x5xf32>) -> tensor<18x5xf32>
    func.return %f, %h : tensor<18x5xf32>, tensor<6x3x5xf32>
  }
}

// -----

// Classes in dim 1, as in images; evaluation gives sums, and how many predictions were right.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %target: tensor<2x4xi64>
// CHECK-SAME: -> (tensor<f32> {dmlc.name = "loss_sum"}, tensor<f32> {dmlc.name = "count"}, tensor<f32> {dmlc.name = "correct"})
// CHECK: %[[T:.*]] = dmlc.transpose {{.*}} {perm = array<i64: 0, 2, 1>
// CHECK: dmlc.cross_entropy %[[T]], %target
// CHECK: dmlc.argmax %[[T]] {dim = 2 : i64
builtin.module attributes {dmlc.mode = "eval", dmlc.train = {loss = "cross-entropy", class_dim = 1 : i64}} {
  func.func @main(%x: tensor<2x3x4xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<4xf32> {dmlc.role = "param"}) -> (tensor<2x3x4xf32> {dmlc.name = "logits"}) {
    %h = dmlc.mul %x, %w : (tensor<2x3x4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
    func.return %h : tensor<2x3x4xf32>
  }
}

// -----

// The model's own mean over 30 elements of 6 samples: over 5 elements a sample, and over how many samples a step has.
// CHECK-LABEL: func.func @main
// CHECK: %[[ONES:.*]] = dmlc.full {value = 1.0 : f64, dmlc.batch_dim = 0 : i64{{.*}}} : () -> tensor<6xf32>
// CHECK: %[[COUNT:.*]] = dmlc.reduce_sum %[[ONES]]
// CHECK: dmlc.full {value = 0.2 : f64
// CHECK: dmlc.maximum %[[COUNT]]
// CHECK: %[[LOSS:.*]] = dmlc.div
// CHECK: func.return %[[LOSS]], %{{.*}} : tensor<f32>, tensor<4xf32>
builtin.module attributes {dmlc.mode = "train", dmlc.train = {loss = ""}} {
  func.func @main(%x: tensor<6x5xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<5xf32> {dmlc.role = "param"}, %r: tensor<4xf32> {dmlc.role = "buffer"}) -> (tensor<6x5xf32> {dmlc.name = "y"}, tensor<f32> {dmlc.name = "loss"}, tensor<4xf32> {dmlc.name = "r.new", dmlc.updates = "r"}) {
    %y = dmlc.mul %x, %w : (tensor<6x5xf32>, tensor<5xf32>) -> tensor<6x5xf32>
    %s = dmlc.reduce_sum %y {dims = array<i64: 0, 1>} : (tensor<6x5xf32>) -> tensor<f32>
    %n = dmlc.full {value = 0.03333333333333333 : f64} : () -> tensor<f32>
    %l = dmlc.mul %s, %n : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %r2 = dmlc.exp %r : (tensor<4xf32>) -> tensor<4xf32>
    func.return %y, %l, %r2 : tensor<6x5xf32>, tensor<f32>, tensor<4xf32>
  }
}

// -----

// A mean over a dim that is not the batch, and a scale that is no mean over samples, stay as they are.
// CHECK-LABEL: func.func @main
// CHECK-NOT: dmlc.div
builtin.module attributes {dmlc.mode = "train"} {
  func.func @main(%x: tensor<6x5xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<5xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
    %y = dmlc.mul %x, %w : (tensor<6x5xf32>, tensor<5xf32>) -> tensor<6x5xf32>
    %m = dmlc.reduce_sum %y {dims = array<i64: 1>} : (tensor<6x5xf32>) -> tensor<6xf32>
    %fifth = dmlc.full {value = 0.2 : f64} : () -> tensor<f32>
    %a = dmlc.mul %m, %fifth : (tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
    %s = dmlc.reduce_sum %a {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
    %l = dmlc.mul %s, %fifth : (tensor<f32>, tensor<f32>) -> tensor<f32>
    func.return %l : tensor<f32>
  }
}

// -----

// The model's own mean over valid targets is never divided by zero; in evaluation its sum and count are given apart.
// CHECK-LABEL: func.func @main
// CHECK: %[[SUM:.*]] = dmlc.reduce_sum
// CHECK: %[[COUNT:.*]] = dmlc.reduce_sum
// CHECK: func.return %[[SUM]], %[[COUNT]] : tensor<f32>, tensor<f32>
builtin.module attributes {dmlc.mode = "eval"} {
  func.func @main(%x: tensor<6x5xf32> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %t: tensor<6xi64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %w: tensor<5xf32> {dmlc.role = "param"}) -> (tensor<f32> {dmlc.name = "loss"}) {
    %y = dmlc.mul %x, %w : (tensor<6x5xf32>, tensor<5xf32>) -> tensor<6x5xf32>
    %rows = dmlc.cross_entropy %y, %t : (tensor<6x5xf32>, tensor<6xi64>) -> tensor<6xf32>
    %s = dmlc.reduce_sum %rows {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
    %ignored = dmlc.full {value = -100 : i64} : () -> tensor<i64>
    %valid = dmlc.ne %t, %ignored : (tensor<6xi64>, tensor<i64>) -> tensor<6xi1>
    %v = dmlc.cast %valid {to = "f32"} : (tensor<6xi1>) -> tensor<6xf32>
    %c = dmlc.reduce_sum %v {dims = array<i64: 0>} : (tensor<6xf32>) -> tensor<f32>
    %l = dmlc.div %s, %c : (tensor<f32>, tensor<f32>) -> tensor<f32>
    func.return %l : tensor<f32>
  }
}
