// RUN: dmlc opt %s --split-input-file --passes raise-composites | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes raise-composites --check

// 0.5 x (1 + erf(x / sqrt 2)).
// CHECK-LABEL: func.func @gelu
// CHECK-NEXT: %[[A:.*]] = dmlc.gelu %x {{.*}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: %[[B:.*]] = dmlc.gelu %y {{.*}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: func.return %[[A]], %[[B]]
func.func @gelu(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %r = dmlc.full {value = 1.4142135623730951 : f64} : () -> tensor<f32>
  %h = dmlc.full {value = 0.5 : f64} : () -> tensor<f32>
  %o = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %d = dmlc.div %x, %r : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %e = dmlc.erf %d : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = dmlc.add %e, %o : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %m = dmlc.mul %x, %s : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = dmlc.mul %m, %h : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %c = dmlc.full {value = 0.7071067811865476 : f64} : () -> tensor<f32>
  %d2 = dmlc.mul %y, %c : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %e2 = dmlc.erf %d2 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s2 = dmlc.add %o, %e2 : (tensor<f32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %p = dmlc.mul %y, %h : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %b = dmlc.mul %s2, %p : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %a, %b : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// The tanh form, with the cube as a power.
// CHECK-LABEL: func.func @gelu_tanh
// CHECK-NEXT: %[[A:.*]] = dmlc.gelu %x {approximate = "tanh"
// CHECK-NEXT: func.return %[[A]]
func.func @gelu_tanh(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %three = dmlc.full {value = 3.0 : f64} : () -> tensor<f32>
  %k = dmlc.full {value = 0.044715 : f64} : () -> tensor<f32>
  %c = dmlc.full {value = 0.7978845608028654 : f64} : () -> tensor<f32>
  %o = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %h = dmlc.full {value = 0.5 : f64} : () -> tensor<f32>
  %p = dmlc.pow %x, %three : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %q = dmlc.mul %p, %k : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %i = dmlc.add %x, %q : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %j = dmlc.mul %i, %c : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %t = dmlc.tanh %j : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = dmlc.add %t, %o : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %g = dmlc.mul %x, %h : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %y = dmlc.mul %g, %s : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// -----

// x sigmoid(x) is SiLU; x sigmoid(1.702 x) is not, and its inner product is a result of its own.
// CHECK-LABEL: func.func @silu
// CHECK: dmlc.silu %x
// CHECK: %[[T:.*]] = dmlc.mul %x, %{{.*}}
// CHECK-NEXT: dmlc.sigmoid %[[T]]
// CHECK-NOT: dmlc.silu
func.func @silu(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %s = dmlc.sigmoid %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = dmlc.mul %x, %s : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c = dmlc.full {value = 1.702 : f64} : () -> tensor<f32>
  %t = dmlc.mul %x, %c : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %u = dmlc.sigmoid %t : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b = dmlc.mul %x, %u : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %a, %b, %t : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// A gate that the program returns too keeps the formula as it is.
// CHECK-LABEL: func.func @gate_is_a_result
// CHECK-NOT: dmlc.silu
func.func @gate_is_a_result(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %s = dmlc.sigmoid %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = dmlc.mul %x, %s : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %a, %s : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// CHECK-LABEL: func.func @softmax
// CHECK-NEXT: %[[Y:.*]] = dmlc.softmax %x {dim = 1 : i64
// CHECK-NEXT: func.return %[[Y]]
func.func @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %m = dmlc.reduce_max %x {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %d = dmlc.sub %x, %m : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %e = dmlc.exp %d : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = dmlc.reduce_sum %e {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %y = dmlc.div %e, %s : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// -----

// The sum runs over another dim than the maximum: no softmax.
// CHECK-LABEL: func.func @other_dim
// CHECK-NOT: dmlc.softmax
func.func @other_dim(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %m = dmlc.reduce_max %x {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %d = dmlc.sub %x, %m : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %e = dmlc.exp %d : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = dmlc.reduce_sum %e {dims = array<i64: 0>, keepdim = true} : (tensor<4x8xf32>) -> tensor<1x8xf32>
  %y = dmlc.div %e, %s : (tensor<4x8xf32>, tensor<1x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// -----

// The core, then weight and bias, whatever their order in a product or sum.
// CHECK-LABEL: func.func @layer_norm
// CHECK-NEXT: %[[Y:.*]] = dmlc.layer_norm %x, %w, %b {eps = 1.0e-05 : f64
// CHECK-NEXT: func.return %[[Y]]
func.func @layer_norm(%x: tensor<4x8xf32>, %w: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %n = dmlc.full {value = 0.125 : f64} : () -> tensor<f32>
  %eps = dmlc.full {value = 1.0e-05 : f64} : () -> tensor<f32>
  %sum = dmlc.reduce_sum %x {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %mean = dmlc.mul %sum, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %d = dmlc.sub %x, %mean : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %sq = dmlc.mul %d, %d : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %ssq = dmlc.reduce_sum %sq {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %var = dmlc.mul %ssq, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %v = dmlc.add %var, %eps : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %root = dmlc.sqrt %v : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %h = dmlc.div %d, %root : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %s = dmlc.mul %w, %h : (tensor<8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = dmlc.add %s, %b : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// -----

// Computed in float32 between casts: the casts stay, the weight multiplies afterwards in half precision as written.
// CHECK-LABEL: func.func @rms_norm_in_float32
// CHECK-NEXT: %[[X:.*]] = dmlc.cast %x {to = "f32"
// CHECK-NEXT: %[[ONE:.*]] = dmlc.full {value = 1.0 : f64{{.*}} -> tensor<8xf32>
// CHECK-NEXT: %[[N:.*]] = dmlc.rms_norm %[[X]], %[[ONE]] {eps = 1.0e-06 : f64
// CHECK-NEXT: %[[C:.*]] = dmlc.cast %[[N]] {to = "f16"
// CHECK-NEXT: dmlc.mul %w, %[[C]]
func.func @rms_norm_in_float32(%x: tensor<4x8xf16>, %w: tensor<8xf16>) -> tensor<4x8xf16> {
  %n = dmlc.full {value = 0.125 : f64} : () -> tensor<f32>
  %eps = dmlc.full {value = 1.0e-06 : f64} : () -> tensor<f32>
  %two = dmlc.full {value = 2.0 : f64} : () -> tensor<f32>
  %f = dmlc.cast %x {to = "f32"} : (tensor<4x8xf16>) -> tensor<4x8xf32>
  %sq = dmlc.pow %f, %two : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %ssq = dmlc.reduce_sum %sq {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %mean = dmlc.mul %ssq, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %v = dmlc.add %mean, %eps : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %root = dmlc.rsqrt %v : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %h = dmlc.mul %f, %root : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %c = dmlc.cast %h {to = "f16"} : (tensor<4x8xf32>) -> tensor<4x8xf16>
  %y = dmlc.mul %w, %c : (tensor<8xf16>, tensor<4x8xf16>) -> tensor<4x8xf16>
  func.return %y : tensor<4x8xf16>
}

// -----

// A mean over 7 of 8 elements, and one whose square is cast down before the sum: neither is the norm's formula.
// CHECK-LABEL: func.func @not_norms
// CHECK-NOT: dmlc.rms_norm
func.func @not_norms(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %n = dmlc.full {value = 0.14285715 : f64} : () -> tensor<f32>
  %eighth = dmlc.full {value = 0.125 : f64} : () -> tensor<f32>
  %eps = dmlc.full {value = 1.0e-06 : f64} : () -> tensor<f32>
  %sq = dmlc.mul %x, %x : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %ssq = dmlc.reduce_sum %sq {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %mean = dmlc.mul %ssq, %n : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %v = dmlc.add %mean, %eps : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %root = dmlc.rsqrt %v : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %a = dmlc.mul %x, %root : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %half = dmlc.cast %sq {to = "f16"} : (tensor<4x8xf32>) -> tensor<4x8xf16>
  %hsum = dmlc.reduce_sum %half {dims = array<i64: 1>, keepdim = true} : (tensor<4x8xf16>) -> tensor<4x1xf16>
  %back = dmlc.cast %hsum {to = "f32"} : (tensor<4x1xf16>) -> tensor<4x1xf32>
  %m2 = dmlc.mul %back, %eighth : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %v2 = dmlc.add %m2, %eps : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %r2 = dmlc.rsqrt %v2 : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %b = dmlc.mul %x, %r2 : (tensor<4x8xf32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  func.return %a, %b : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// The scale is the one written, on the scores and on q and k alike, not the default 1 / sqrt(8).
// CHECK-LABEL: func.func @attention
// CHECK-NEXT: %[[Y:.*]] = dmlc.attention %q, %k, %v {scale = 0.0078125 : f64
// CHECK-NEXT: func.return %[[Y]]
func.func @attention(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x7x8xf32>, %v: tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32> {
  %c = dmlc.full {value = 0.25 : f64} : () -> tensor<f32>
  %e = dmlc.full {value = 8.0 : f64} : () -> tensor<f32>
  %t = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<2x4x7x8xf32>) -> tensor<2x4x8x7xf32>
  %a = dmlc.mul %q, %c : (tensor<2x4x5x8xf32>, tensor<f32>) -> tensor<2x4x5x8xf32>
  %b = dmlc.mul %t, %c : (tensor<2x4x8x7xf32>, tensor<f32>) -> tensor<2x4x8x7xf32>
  %s = dmlc.matmul %a, %b : (tensor<2x4x5x8xf32>, tensor<2x4x8x7xf32>) -> tensor<2x4x5x7xf32>
  %z = dmlc.div %s, %e : (tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %p = dmlc.softmax %z {dim = 3 : i64} : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %y = dmlc.matmul %p, %v : (tensor<2x4x5x7xf32>, tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32>
  func.return %y : tensor<2x4x5x6xf32>
}

// -----

// A softmax over the batch is not attention.
// CHECK-LABEL: func.func @softmax_over_batch
// CHECK-NOT: dmlc.attention
func.func @softmax_over_batch(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x7x8xf32>, %v: tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32> {
  %t = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<2x4x7x8xf32>) -> tensor<2x4x8x7xf32>
  %s = dmlc.matmul %q, %t : (tensor<2x4x5x8xf32>, tensor<2x4x8x7xf32>) -> tensor<2x4x5x7xf32>
  %p = dmlc.softmax %s {dim = 0 : i64} : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %y = dmlc.matmul %p, %v : (tensor<2x4x5x7xf32>, tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32>
  func.return %y : tensor<2x4x5x6xf32>
}

// -----

// The mask may hide a whole row, which this program makes NaN and attention makes 0: it stays.
// CHECK-LABEL: func.func @hidden_row_is_nan
// CHECK-NOT: dmlc.attention
func.func @hidden_row_is_nan(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x7x8xf32>, %v: tensor<2x4x7x6xf32>, %m: tensor<2x1x5x7xi1>) -> tensor<2x4x5x6xf32> {
  %c = dmlc.full {value = 0.0078125 : f64} : () -> tensor<f32>
  %t = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<2x4x7x8xf32>) -> tensor<2x4x8x7xf32>
  %s = dmlc.matmul %q, %t : (tensor<2x4x5x8xf32>, tensor<2x4x8x7xf32>) -> tensor<2x4x5x7xf32>
  %z = dmlc.mul %s, %c : (tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %i = dmlc.full {value = 0xFFF0000000000000 : f64} : () -> tensor<f32>
  %l = dmlc.select %m, %z, %i : (tensor<2x1x5x7xi1>, tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %p = dmlc.softmax %l {dim = 3 : i64} : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %y = dmlc.matmul %p, %v : (tensor<2x4x5x7xf32>, tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32>
  func.return %y : tensor<2x4x5x6xf32>
}

// -----

// With NaN replaced by 0, as exporters write scaled_dot_product_attention, it is attention.
// CHECK-LABEL: func.func @hidden_row_is_zero
// CHECK-NEXT: dmlc.attention %q, %k, %v, %m {scale = 0.0078125 : f64
func.func @hidden_row_is_zero(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x7x8xf32>, %v: tensor<2x4x7x6xf32>, %m: tensor<2x1x5x7xi1>) -> tensor<2x4x5x6xf32> {
  %c = dmlc.full {value = 0.0078125 : f64} : () -> tensor<f32>
  %t = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<2x4x7x8xf32>) -> tensor<2x4x8x7xf32>
  %s = dmlc.matmul %q, %t : (tensor<2x4x5x8xf32>, tensor<2x4x8x7xf32>) -> tensor<2x4x5x7xf32>
  %z = dmlc.mul %s, %c : (tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %i = dmlc.full {value = 0xFFF0000000000000 : f64} : () -> tensor<f32>
  %l = dmlc.select %m, %z, %i : (tensor<2x1x5x7xi1>, tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %p = dmlc.softmax %l {dim = 3 : i64} : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %o = dmlc.full {value = 0.0 : f64} : () -> tensor<f32>
  %n = dmlc.isnan %p : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xi1>
  %g = dmlc.select %n, %o, %p : (tensor<2x4x5x7xi1>, tensor<f32>, tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %y = dmlc.matmul %g, %v : (tensor<2x4x5x7xf32>, tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32>
  func.return %y : tensor<2x4x5x6xf32>
}

// -----

// A finite fill makes a hidden row an even average: the mask adds that number instead of hiding.
// CHECK-LABEL: func.func @finite_fill
// CHECK: %[[MASK:.*]] = dmlc.select %m, %{{.*}}, %{{.*}} -> tensor<2x1x5x7xf32>
// CHECK-NEXT: dmlc.attention %q, %k, %v, %[[MASK]]
func.func @finite_fill(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x7x8xf32>, %v: tensor<2x4x7x6xf32>, %m: tensor<2x1x5x7xi1>) -> tensor<2x4x5x6xf32> {
  %c = dmlc.full {value = 0.0078125 : f64} : () -> tensor<f32>
  %t = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<2x4x7x8xf32>) -> tensor<2x4x8x7xf32>
  %s = dmlc.matmul %q, %t : (tensor<2x4x5x8xf32>, tensor<2x4x8x7xf32>) -> tensor<2x4x5x7xf32>
  %z = dmlc.mul %s, %c : (tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %i = dmlc.full {value = -3.4028234663852886e+38 : f64} : () -> tensor<f32>
  %l = dmlc.select %m, %z, %i : (tensor<2x1x5x7xi1>, tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %p = dmlc.softmax %l {dim = 3 : i64} : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %y = dmlc.matmul %p, %v : (tensor<2x4x5x7xf32>, tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32>
  func.return %y : tensor<2x4x5x6xf32>
}

// -----

// The weights are returned: raised, they would be computed twice.
// CHECK-LABEL: func.func @weights_are_a_result
// CHECK-NOT: dmlc.attention
func.func @weights_are_a_result(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x7x8xf32>, %v: tensor<2x4x7x6xf32>) -> (tensor<2x4x5x6xf32>, tensor<2x4x5x7xf32>) {
  %c = dmlc.full {value = 0.0078125 : f64} : () -> tensor<f32>
  %t = dmlc.transpose %k {perm = array<i64: 0, 1, 3, 2>} : (tensor<2x4x7x8xf32>) -> tensor<2x4x8x7xf32>
  %s = dmlc.matmul %q, %t : (tensor<2x4x5x8xf32>, tensor<2x4x8x7xf32>) -> tensor<2x4x5x7xf32>
  %z = dmlc.mul %s, %c : (tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %l = dmlc.mul %z, %c : (tensor<2x4x5x7xf32>, tensor<f32>) -> tensor<2x4x5x7xf32>
  %p = dmlc.softmax %l {dim = 3 : i64} : (tensor<2x4x5x7xf32>) -> tensor<2x4x5x7xf32>
  %y = dmlc.matmul %p, %v : (tensor<2x4x5x7xf32>, tensor<2x4x7x6xf32>) -> tensor<2x4x5x6xf32>
  func.return %y, %p : tensor<2x4x5x6xf32>, tensor<2x4x5x7xf32>
}

// -----

// A mask of no input is evaluated: row >= column is causal; with all true it goes.
// CHECK-LABEL: func.func @causal
// CHECK-NEXT: %[[A:.*]] = dmlc.attention %q, %k, %v {scale = 0.5 : f64, causal = true
// CHECK-NEXT: %[[B:.*]] = dmlc.attention %[[A]], %k, %v {scale = 0.5 : f64
// CHECK-NOT: causal
// CHECK: func.return %[[B]]
func.func @causal(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>) -> tensor<2x4x5x8xf32> {
  %i = dmlc.iota {dim = 2 : i64} : () -> tensor<2x1x5x1xi64>
  %j = dmlc.iota {dim = 3 : i64} : () -> tensor<1x1x1x5xi64>
  %m = dmlc.ge %i, %j : (tensor<2x1x5x1xi64>, tensor<1x1x1x5xi64>) -> tensor<2x1x5x5xi1>
  %a = dmlc.attention %q, %k, %v, %m {scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x1x5x5xi1>) -> tensor<2x4x5x8xf32>
  %o = dmlc.full {value = -1 : i64} : () -> tensor<i64>
  %n = dmlc.gt %i, %o : (tensor<2x1x5x1xi64>, tensor<i64>) -> tensor<2x1x5x1xi1>
  %b = dmlc.broadcast %n : (tensor<2x1x5x1xi1>) -> tensor<2x4x5x5xi1>
  %y = dmlc.attention %a, %k, %v, %b {scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x5xi1>) -> tensor<2x4x5x8xf32>
  func.return %y : tensor<2x4x5x8xf32>
}

// -----

// A strict upper bound (row > column) is not the causal mask, and hides the first row: it stays a mask.
// CHECK-LABEL: func.func @strictly_lower
// CHECK: dmlc.attention %q, %k, %v, %{{.*}} {scale = 0.5 : f64
// CHECK-NOT: causal
func.func @strictly_lower(%q: tensor<2x4x5x8xf32>, %k: tensor<2x4x5x8xf32>, %v: tensor<2x4x5x8xf32>) -> tensor<2x4x5x8xf32> {
  %i = dmlc.iota {dim = 2 : i64} : () -> tensor<1x1x5x1xi64>
  %j = dmlc.iota {dim = 3 : i64} : () -> tensor<1x1x1x5xi64>
  %m = dmlc.gt %i, %j : (tensor<1x1x5x1xi64>, tensor<1x1x1x5xi64>) -> tensor<1x1x5x5xi1>
  %y = dmlc.attention %q, %k, %v, %m {scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<1x1x5x5xi1>) -> tensor<2x4x5x8xf32>
  func.return %y : tensor<2x4x5x8xf32>
}

// -----

// Heads repeated in a row for their group are not repeated; heads repeated as whole copies (another order) stay.
// CHECK-LABEL: func.func @grouped
// CHECK-NEXT: %[[A:.*]] = dmlc.attention %q, %k, %v {scale = 0.5 : f64
// CHECK-SAME: : (tensor<2x4x5x8xf32>, tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>) -> tensor<2x4x5x8xf32>
// CHECK: dmlc.attention %[[A]], %v{{[0-9]+}}, %v{{[0-9]+}} {scale = 0.5 : f64
// CHECK-SAME: : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x5x8xf32>
func.func @grouped(%q: tensor<2x4x5x8xf32>, %k: tensor<2x2x5x8xf32>, %v: tensor<2x2x5x8xf32>) -> tensor<2x4x5x8xf32> {
  %k1 = dmlc.reshape %k : (tensor<2x2x5x8xf32>) -> tensor<2x2x1x5x8xf32>
  %k2 = dmlc.broadcast %k1 : (tensor<2x2x1x5x8xf32>) -> tensor<2x2x2x5x8xf32>
  %k3 = dmlc.reshape %k2 : (tensor<2x2x2x5x8xf32>) -> tensor<2x4x5x8xf32>
  %v1 = dmlc.reshape %v : (tensor<2x2x5x8xf32>) -> tensor<2x2x1x5x8xf32>
  %v2 = dmlc.broadcast %v1 : (tensor<2x2x1x5x8xf32>) -> tensor<2x2x2x5x8xf32>
  %v3 = dmlc.reshape %v2 : (tensor<2x2x2x5x8xf32>) -> tensor<2x4x5x8xf32>
  %a = dmlc.attention %q, %k3, %v3 {scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x5x8xf32>
  %k4 = dmlc.concat %k, %k {dim = 1 : i64} : (tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>) -> tensor<2x4x5x8xf32>
  %v4 = dmlc.concat %v, %v {dim = 1 : i64} : (tensor<2x2x5x8xf32>, tensor<2x2x5x8xf32>) -> tensor<2x4x5x8xf32>
  %y = dmlc.attention %a, %k4, %v4 {scale = 0.5 : f64} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> tensor<2x4x5x8xf32>
  func.return %y : tensor<2x4x5x8xf32>
}

// -----

// Counted-up positions are rows in order; a lookup through whole dims only moves them.
// CHECK-LABEL: func.func @positions
// CHECK-NEXT: %[[R:.*]] = dmlc.slice %table {dim = 0 : i64, start = 2 : i64, stop = 7 : i64
// CHECK-NEXT: %[[E:.*]] = dmlc.reshape %[[R]] {{.*}} -> tensor<1x5x4xf32>
// CHECK-NEXT: %[[M:.*]] = dmlc.reshape %mask {{.*}} -> tensor<3x1x1x6xi1>
// CHECK-NEXT: func.return %[[E]], %[[M]]
func.func @positions(%table: tensor<9x4xf32>, %mask: tensor<3x6xi1>) -> (tensor<1x5x4xf32>, tensor<3x1x1x6xi1>) {
  %two = dmlc.full {value = 2 : i64} : () -> tensor<i64>
  %p = dmlc.iota %two : (tensor<i64>) -> tensor<5xi64>
  %ids = dmlc.reshape %p : (tensor<5xi64>) -> tensor<1x5xi64>
  %e = dmlc.embedding %table, %ids : (tensor<9x4xf32>, tensor<1x5xi64>) -> tensor<1x5x4xf32>
  %b = dmlc.iota : () -> tensor<3x1x1x1xi64>
  %k = dmlc.iota {dim = 3 : i64} : () -> tensor<1x1x1x6xi64>
  %m = dmlc.index %mask, %b, %k : (tensor<3x6xi1>, tensor<3x1x1x1xi64>, tensor<1x1x1x6xi64>) -> tensor<3x1x1x6xi1>
  func.return %e, %m : tensor<1x5x4xf32>, tensor<3x1x1x6xi1>
}
