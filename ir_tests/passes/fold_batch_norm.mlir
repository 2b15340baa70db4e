// RUN: dmlc opt %s --split-input-file --passes fold-batch-norm | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes fold-batch-norm --check

// Inference: the norm becomes weight and bias of the convolution, both with a recipe from the stored values.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %c_weight: tensor<4x3x3x3xf32> {dmlc.role = "param", dmlc.derived = @derived
// CHECK-SAME: %c_bias: tensor<4xf32> {dmlc.role = "param", dmlc.derived = @derived_1
// CHECK-NEXT: %[[C:.*]] = dmlc.conv %x, %c_weight
// CHECK-NEXT: %[[B:.*]] = dmlc.reshape %c_bias {{.*}} -> tensor<4x1x1xf32>
// CHECK-NEXT: %[[Y:.*]] = dmlc.add %[[C]], %[[B]]
// CHECK-NEXT: func.return %[[Y]]
// CHECK: func.func private @derived(
// CHECK: dmlc.rsqrt
func.func @main(%x: tensor<2x3x5x5xf32>, %w: tensor<4x3x3x3xf32> {dmlc.role = "param", dmlc.names = ["w"], dmlc.value = dense_resource<w> : tensor<4x3x3x3xf32>}, %g: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["g"], dmlc.value = dense_resource<g> : tensor<4xf32>}, %b: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["b"], dmlc.value = dense_resource<b> : tensor<4xf32>}, %m: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["m"], dmlc.value = dense_resource<m> : tensor<4xf32>}, %v: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["v"], dmlc.value = dense_resource<v> : tensor<4xf32>}) -> tensor<2x4x3x3xf32> {
  %c = dmlc.conv %x, %w {dmlc.name = "c"} : (tensor<2x3x5x5xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x3x3xf32>
  %y = dmlc.batch_norm %c, %g, %b, %m, %v {eps = 1.0e-05 : f64} : (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x3x3xf32>
  func.return %y : tensor<2x4x3x3xf32>
}

// -----

// A bias of the convolution goes into the new one.
// CHECK-LABEL: func.func @main
// CHECK: dmlc.conv
// CHECK-COUNT-1: dmlc.add
// CHECK-NEXT: func.return
// CHECK: func.func private @derived_1(
// CHECK: dmlc.sub %z, %m
func.func @main(%x: tensor<2x3x5x5xf32>, %w: tensor<4x3x3x3xf32> {dmlc.role = "param", dmlc.names = ["w"], dmlc.value = dense_resource<w> : tensor<4x3x3x3xf32>}, %z: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["z"], dmlc.value = dense_resource<z> : tensor<4xf32>}, %g: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["g"], dmlc.value = dense_resource<g> : tensor<4xf32>}, %b: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["b"], dmlc.value = dense_resource<b> : tensor<4xf32>}, %m: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["m"], dmlc.value = dense_resource<m> : tensor<4xf32>}, %v: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["v"], dmlc.value = dense_resource<v> : tensor<4xf32>}) -> tensor<2x4x3x3xf32> {
  %c = dmlc.conv %x, %w : (tensor<2x3x5x5xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x3x3xf32>
  %r = dmlc.reshape %z : (tensor<4xf32>) -> tensor<4x1x1xf32>
  %a = dmlc.add %c, %r : (tensor<2x4x3x3xf32>, tensor<4x1x1xf32>) -> tensor<2x4x3x3xf32>
  %y = dmlc.batch_norm %a, %g, %b, %m, %v {eps = 1.0e-05 : f64} : (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x3x3xf32>
  func.return %y : tensor<2x4x3x3xf32>
}

// -----

// Two groups of a transposed convolution: the scale runs along dim 1 of the weight, group by group.
// CHECK-LABEL: func.func @main
// CHECK-NOT: dmlc.batch_norm
// CHECK: func.func private @derived(
// CHECK: dmlc.reshape %w {{.*}} -> tensor<2x3x2x2x2xf32>
func.func @main(%x: tensor<2x6x3x3xf32>, %w: tensor<6x2x2x2xf32> {dmlc.role = "param", dmlc.names = ["w"], dmlc.value = dense_resource<w> : tensor<6x2x2x2xf32>}, %g: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["g"], dmlc.value = dense_resource<g> : tensor<4xf32>}, %b: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["b"], dmlc.value = dense_resource<b> : tensor<4xf32>}, %m: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["m"], dmlc.value = dense_resource<m> : tensor<4xf32>}, %v: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["v"], dmlc.value = dense_resource<v> : tensor<4xf32>}) -> tensor<2x4x4x4xf32> {
  %c = dmlc.conv_transpose %x, %w {groups = 2 : i64} : (tensor<2x6x3x3xf32>, tensor<6x2x2x2xf32>) -> tensor<2x4x4x4xf32>
  %y = dmlc.batch_norm %c, %g, %b, %m, %v {eps = 1.0e-05 : f64} : (tensor<2x4x4x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x4x4xf32>
  func.return %y : tensor<2x4x4x4xf32>
}

// -----

// The convolution's output is a result too; a variance that is an input; statistics of the batch itself: all stay.
// CHECK-LABEL: func.func @main
// CHECK-COUNT-2: dmlc.batch_norm %
// CHECK: dmlc.batch_norm_train
// CHECK-NOT: @derived
func.func @main(%x: tensor<2x3x5x5xf32>, %given: tensor<4xf32>, %w: tensor<4x3x3x3xf32> {dmlc.role = "param", dmlc.names = ["w"], dmlc.value = dense_resource<w> : tensor<4x3x3x3xf32>}, %g: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["g"], dmlc.value = dense_resource<g> : tensor<4xf32>}, %b: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["b"], dmlc.value = dense_resource<b> : tensor<4xf32>}, %m: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["m"], dmlc.value = dense_resource<m> : tensor<4xf32>}, %v: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["v"], dmlc.value = dense_resource<v> : tensor<4xf32>}) -> (tensor<2x4x3x3xf32>, tensor<2x4x3x3xf32>, tensor<2x4x3x3xf32>, tensor<2x4x3x3xf32>, tensor<4xf32>) {
  %c = dmlc.conv %x, %w : (tensor<2x3x5x5xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x3x3xf32>
  %y = dmlc.batch_norm %c, %g, %b, %m, %v {eps = 1.0e-05 : f64} : (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x3x3xf32>
  %d = dmlc.conv %x, %w {dmlc.name = "d"} : (tensor<2x3x5x5xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x3x3xf32>
  %s = dmlc.mul %given, %given : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %z = dmlc.batch_norm %d, %g, %b, %m, %s {eps = 1.0e-05 : f64} : (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x3x3xf32>
  %e = dmlc.conv %x, %w {dmlc.name = "e"} : (tensor<2x3x5x5xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x3x3xf32>
  %t, %mean, %variance = dmlc.batch_norm_train %e, %g, %b {eps = 1.0e-05 : f64} : (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return %y, %c, %z, %t, %mean : tensor<2x4x3x3xf32>, tensor<2x4x3x3xf32>, tensor<2x4x3x3xf32>, tensor<2x4x3x3xf32>, tensor<4xf32>
}

// -----

// Under training the parameters move on: nothing folds.
// CHECK-LABEL: func.func @main
// CHECK: dmlc.batch_norm
builtin.module attributes {dmlc.mode = "train"} {
  func.func @main(%x: tensor<2x3x5x5xf32>, %w: tensor<4x3x3x3xf32> {dmlc.role = "param", dmlc.names = ["w"], dmlc.value = dense_resource<w> : tensor<4x3x3x3xf32>}, %g: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["g"], dmlc.value = dense_resource<g> : tensor<4xf32>}, %b: tensor<4xf32> {dmlc.role = "param", dmlc.names = ["b"], dmlc.value = dense_resource<b> : tensor<4xf32>}, %m: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["m"], dmlc.value = dense_resource<m> : tensor<4xf32>}, %v: tensor<4xf32> {dmlc.role = "buffer", dmlc.names = ["v"], dmlc.value = dense_resource<v> : tensor<4xf32>}) -> tensor<2x4x3x3xf32> {
    %c = dmlc.conv %x, %w : (tensor<2x3x5x5xf32>, tensor<4x3x3x3xf32>) -> tensor<2x4x3x3xf32>
    %y = dmlc.batch_norm %c, %g, %b, %m, %v {eps = 1.0e-05 : f64} : (tensor<2x4x3x3xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x4x3x3xf32>
    func.return %y : tensor<2x4x3x3xf32>
  }
}
