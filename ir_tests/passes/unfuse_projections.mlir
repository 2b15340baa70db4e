// RUN: dmlc opt %s --split-input-file --passes unfuse-projections | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes unfuse-projections --check

// q|k|v in one [24, 8] weight: three products, biases with them; the recipes slice the stored values.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %qkv_weight_0_8: tensor<8x8xf32> {dmlc.role = "param", dmlc.derived = @derived
// CHECK-SAME: %qkv_bias_16_24: tensor<8xf32>
// CHECK-NEXT: %[[Q:.*]] = dmlc.linear %x, %qkv_weight_0_8
// CHECK-NEXT: dmlc.add %[[Q]], %qkv_bias_0_8
// CHECK-NEXT: dmlc.linear %x, %qkv_weight_8_16
// CHECK: dmlc.linear %x, %qkv_weight_16_24
// CHECK-NOT: dmlc.slice
// CHECK: func.func private @derived(%w: tensor<24x8xf32> {dmlc.role = "param", dmlc.names = ["qkv.weight"]
// CHECK-NEXT: dmlc.slice %w {dim = 0 : i64, start = 0 : i64, stop = 8 : i64
func.func @main(%x: tensor<3x5x8xf32>, %w: tensor<24x8xf32> {dmlc.role = "param", dmlc.names = ["qkv.weight"], dmlc.value = dense_resource<qkv.weight> : tensor<24x8xf32>}, %b: tensor<24xf32> {dmlc.role = "param", dmlc.names = ["qkv.bias"], dmlc.value = dense_resource<qkv.bias> : tensor<24xf32>}) -> (tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<3x5x8xf32>) {
  %m = dmlc.linear %x, %w : (tensor<3x5x8xf32>, tensor<24x8xf32>) -> tensor<3x5x24xf32>
  %a = dmlc.add %m, %b : (tensor<3x5x24xf32>, tensor<24xf32>) -> tensor<3x5x24xf32>
  %q = dmlc.slice %a {dim = 2 : i64, stop = 8 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  %k = dmlc.slice %a {dim = 2 : i64, start = 8 : i64, stop = 16 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  %v = dmlc.slice %a {dim = 2 : i64, start = 16 : i64, stop = 24 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  func.return %q, %k, %v : tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<3x5x8xf32>
}

// -----

// Columns split into [2 heads, 3, 4] and transposed: the recipe takes every third run of four.
// CHECK-LABEL: func.func @main
// CHECK: %[[M:.*]] = dmlc.matmul %x, %qkv_weight_0_1 {{.*}} -> tensor<3x5x8xf32>
// CHECK-NEXT: %[[R:.*]] = dmlc.reshape %[[M]] {{.*}} -> tensor<3x5x2x1x4xf32>
// CHECK-NEXT: %[[T:.*]] = dmlc.transpose %[[R]] {perm = array<i64: 3, 0, 2, 1, 4>
// CHECK: func.func private @derived(
// CHECK-NEXT: %[[A:.*]] = dmlc.reshape %w {{.*}} -> tensor<8x2x3x4xf32>
// CHECK-NEXT: %[[B:.*]] = dmlc.slice %[[A]] {dim = 2 : i64, start = 0 : i64, stop = 1 : i64
// CHECK-NEXT: dmlc.reshape %[[B]] {{.*}} -> tensor<8x8xf32>
func.func @main(%x: tensor<3x5x8xf32>, %w: tensor<8x24xf32> {dmlc.role = "param", dmlc.names = ["qkv.weight"], dmlc.value = dense_resource<qkv.weight> : tensor<8x24xf32>}) -> (tensor<1x3x2x5x4xf32>, tensor<1x3x2x5x4xf32>, tensor<1x3x2x5x4xf32>) {
  %m = dmlc.matmul %x, %w : (tensor<3x5x8xf32>, tensor<8x24xf32>) -> tensor<3x5x24xf32>
  %r = dmlc.reshape %m : (tensor<3x5x24xf32>) -> tensor<3x5x2x3x4xf32>
  %t = dmlc.transpose %r {perm = array<i64: 3, 0, 2, 1, 4>} : (tensor<3x5x2x3x4xf32>) -> tensor<3x3x2x5x4xf32>
  %q = dmlc.slice %t {dim = 0 : i64, stop = 1 : i64} : (tensor<3x3x2x5x4xf32>) -> tensor<1x3x2x5x4xf32>
  %k = dmlc.slice %t {dim = 0 : i64, start = 1 : i64, stop = 2 : i64} : (tensor<3x3x2x5x4xf32>) -> tensor<1x3x2x5x4xf32>
  %v = dmlc.slice %t {dim = 0 : i64, start = 2 : i64, stop = 3 : i64} : (tensor<3x3x2x5x4xf32>) -> tensor<1x3x2x5x4xf32>
  func.return %q, %k, %v : tensor<1x3x2x5x4xf32>, tensor<1x3x2x5x4xf32>, tensor<1x3x2x5x4xf32>
}

// -----

// A weight used elsewhere too, overlapping slices, slices of leading dims, and a whole that is used itself: all stay.
// CHECK-LABEL: func.func @main
// CHECK-NOT: @derived
// CHECK-COUNT-4: dmlc.linear
// CHECK-NOT: dmlc.linear
func.func @main(%x: tensor<3x5x8xf32>, %w: tensor<24x8xf32> {dmlc.role = "param", dmlc.names = ["qkv.weight"], dmlc.value = dense_resource<qkv.weight> : tensor<24x8xf32>}, %u: tensor<24x8xf32> {dmlc.role = "param", dmlc.value = dense_resource<u> : tensor<24x8xf32>}, %s: tensor<24x8xf32> {dmlc.role = "param", dmlc.value = dense_resource<s> : tensor<24x8xf32>}) -> (tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<3x5x24xf32>, tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<1x5x24xf32>, tensor<2x5x24xf32>) {
  %m = dmlc.linear %x, %w : (tensor<3x5x8xf32>, tensor<24x8xf32>) -> tensor<3x5x24xf32>
  %a = dmlc.slice %m {dim = 2 : i64, stop = 8 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  %b = dmlc.slice %m {dim = 2 : i64, start = 8 : i64, stop = 16 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  %n = dmlc.linear %a, %w : (tensor<3x5x8xf32>, tensor<24x8xf32>) -> tensor<3x5x24xf32>
  %o = dmlc.linear %x, %u : (tensor<3x5x8xf32>, tensor<24x8xf32>) -> tensor<3x5x24xf32>
  %c = dmlc.slice %o {dim = 2 : i64, stop = 8 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  %d = dmlc.slice %o {dim = 2 : i64, start = 7 : i64, stop = 15 : i64} : (tensor<3x5x24xf32>) -> tensor<3x5x8xf32>
  %p = dmlc.linear %x, %s : (tensor<3x5x8xf32>, tensor<24x8xf32>) -> tensor<3x5x24xf32>
  %e = dmlc.slice %p {dim = 0 : i64, stop = 1 : i64} : (tensor<3x5x24xf32>) -> tensor<1x5x24xf32>
  %f = dmlc.slice %p {dim = 0 : i64, start = 1 : i64, stop = 3 : i64} : (tensor<3x5x24xf32>) -> tensor<2x5x24xf32>
  func.return %a, %b, %n, %c, %d, %e, %f : tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<3x5x24xf32>, tensor<3x5x8xf32>, tensor<3x5x8xf32>, tensor<1x5x24xf32>, tensor<2x5x24xf32>
}
