// RUN: dmlc opt %s --split-input-file --passes unflatten | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes unflatten --check

// Product, bias, activation and norm keep their leading dims.
// CHECK-LABEL: func.func @layer
// CHECK-NEXT: %[[M:.*]] = dmlc.matmul %x, %w {{.*}} -> tensor<3x5x6xf32>
// CHECK-NEXT: %[[A:.*]] = dmlc.add %[[M]], %b {{.*}} -> tensor<3x5x6xf32>
// CHECK-NEXT: %[[G:.*]] = dmlc.gelu %[[A]]
// CHECK-NEXT: %[[N:.*]] = dmlc.layer_norm %[[G]], %b, %b
// CHECK-NEXT: func.return %[[N]]
func.func @layer(%x: tensor<3x5x8xf32>, %w: tensor<8x6xf32>, %b: tensor<6xf32>) -> tensor<3x5x6xf32> {
  %f = dmlc.reshape %x : (tensor<3x5x8xf32>) -> tensor<15x8xf32>
  %m = dmlc.matmul %f, %w : (tensor<15x8xf32>, tensor<8x6xf32>) -> tensor<15x6xf32>
  %a = dmlc.add %m, %b : (tensor<15x6xf32>, tensor<6xf32>) -> tensor<15x6xf32>
  %g = dmlc.gelu %a : (tensor<15x6xf32>) -> tensor<15x6xf32>
  %n = dmlc.layer_norm %g, %b, %b {eps = 1.0e-05 : f64} : (tensor<15x6xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<15x6xf32>
  %y = dmlc.reshape %n : (tensor<15x6xf32>) -> tensor<3x5x6xf32>
  func.return %y : tensor<3x5x6xf32>
}

// -----

// A reshape that merges leading dims and trailing ones at once: only the leading ones come back.
// CHECK-LABEL: func.func @heads
// CHECK-NEXT: %[[J:.*]] = dmlc.reshape %x {{.*}} -> tensor<3x5x8xf32>
// CHECK-NEXT: %[[M:.*]] = dmlc.linear %[[J]], %w {{.*}} -> tensor<3x5x6xf32>
// CHECK-NEXT: %[[F:.*]] = dmlc.reshape %[[M]] {{.*}} -> tensor<15x6xf32>
// CHECK-NEXT: func.return %[[F]]
func.func @heads(%x: tensor<3x5x2x4xf32>, %w: tensor<6x8xf32>) -> tensor<15x6xf32> {
  %f = dmlc.reshape %x : (tensor<3x5x2x4xf32>) -> tensor<15x8xf32>
  %m = dmlc.linear %f, %w : (tensor<15x8xf32>, tensor<6x8xf32>) -> tensor<15x6xf32>
  func.return %m : tensor<15x6xf32>
}

// -----

// A loss over flattened rows, summed.
// CHECK-LABEL: func.func @loss
// CHECK-NEXT: %[[L:.*]] = dmlc.cross_entropy %x, %t {{.*}} -> tensor<3x5xf32>
// CHECK-NEXT: %[[S:.*]] = dmlc.reduce_sum %[[L]] {dims = array<i64: 0, 1>
// CHECK-NEXT: func.return %[[S]]
func.func @loss(%x: tensor<3x5x8xf32>, %t: tensor<3x5xi64>) -> tensor<f32> {
  %f = dmlc.reshape %x : (tensor<3x5x8xf32>) -> tensor<15x8xf32>
  %g = dmlc.reshape %t : (tensor<3x5xi64>) -> tensor<15xi64>
  %l = dmlc.cross_entropy %f, %g : (tensor<15x8xf32>, tensor<15xi64>) -> tensor<15xf32>
  %s = dmlc.reduce_sum %l {dims = array<i64: 0>} : (tensor<15xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// -----

// What treats the merged dim as one stays: a slice of it, a softmax over it, a sum with an operand that has it, other merged dims.
// CHECK-LABEL: func.func @stays
// CHECK: dmlc.slice %{{.*}} {dim = 0
// CHECK: dmlc.softmax %{{.*}} {dim = 0
// CHECK: dmlc.add %{{.*}}, %r
// CHECK: dmlc.matmul %{{.*}} : (tensor<3x40xf32>
func.func @stays(%x: tensor<3x5x8xf32>, %r: tensor<15x8xf32>, %w: tensor<40x2xf32>) -> (tensor<4x8xf32>, tensor<15x8xf32>, tensor<15x8xf32>, tensor<3x2xf32>) {
  %f = dmlc.reshape %x : (tensor<3x5x8xf32>) -> tensor<15x8xf32>
  %a = dmlc.slice %f {dim = 0 : i64, stop = 4 : i64} : (tensor<15x8xf32>) -> tensor<4x8xf32>
  %b = dmlc.softmax %f {dim = 0 : i64} : (tensor<15x8xf32>) -> tensor<15x8xf32>
  %c = dmlc.add %f, %r : (tensor<15x8xf32>, tensor<15x8xf32>) -> tensor<15x8xf32>
  %h = dmlc.reshape %x : (tensor<3x5x8xf32>) -> tensor<3x40xf32>
  %d = dmlc.matmul %h, %w : (tensor<3x40xf32>, tensor<40x2xf32>) -> tensor<3x2xf32>
  func.return %a, %b, %c, %d : tensor<4x8xf32>, tensor<15x8xf32>, tensor<15x8xf32>, tensor<3x2xf32>
}

// -----

// Sizes that are open until the program runs: the merged dim is the product of the two.
// CHECK-LABEL: func.func @open
// CHECK-NEXT: %[[M:.*]] = dmlc.linear %x, %w {{.*}} -> tensor<?x?x6xf32, #dmlc.dims<["batch", "seq", 6]>>
// CHECK-NEXT: func.return %[[M]]
builtin.module attributes {dmlc.sizes = {batch = {least = 1 : i64, like = 3 : i64}, seq = {least = 1 : i64, most = 64 : i64, like = 5 : i64}}} {
  func.func @open(%x: tensor<?x?x8xf32, #dmlc.dims<["batch", "seq", 8]>>, %w: tensor<6x8xf32>) -> tensor<?x?x6xf32, #dmlc.dims<["batch", "seq", 6]>> {
    %f = dmlc.reshape %x : (tensor<?x?x8xf32, #dmlc.dims<["batch", "seq", 8]>>) -> tensor<?x8xf32, #dmlc.dims<["batch * seq", 8]>>
    %m = dmlc.linear %f, %w : (tensor<?x8xf32, #dmlc.dims<["batch * seq", 8]>>, tensor<6x8xf32>) -> tensor<?x6xf32, #dmlc.dims<["batch * seq", 6]>>
    %y = dmlc.reshape %m : (tensor<?x6xf32, #dmlc.dims<["batch * seq", 6]>>) -> tensor<?x?x6xf32, #dmlc.dims<["batch", "seq", 6]>>
    func.return %y : tensor<?x?x6xf32, #dmlc.dims<["batch", "seq", 6]>>
  }
}
