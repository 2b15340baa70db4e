// RUN: dmlc opt %s --split-input-file --passes canonicalize | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes canonicalize --check

// Dim i of the outer transpose is dim outer[i] of the inner one: (1, 0, 2) then (0, 2, 1) is (1, 2, 0), not its inverse (2, 0, 1).
// CHECK-LABEL: func.func @transposes
// CHECK-NEXT: %[[Y:.*]] = dmlc.transpose %x {perm = array<i64: 1, 2, 0>
// CHECK-NEXT: func.return %[[Y]]
func.func @transposes(%x: tensor<2x3x4xf32>) -> tensor<3x4x2xf32> {
  %a = dmlc.transpose %x {perm = array<i64: 1, 0, 2>} : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  %b = dmlc.transpose %a {perm = array<i64: 0, 2, 1>} : (tensor<3x2x4xf32>) -> tensor<3x4x2xf32>
  func.return %b : tensor<3x4x2xf32>
}

// -----

// CHECK-LABEL: func.func @inverse_transposes
// CHECK-NEXT: func.return %x
func.func @inverse_transposes(%x: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %a = dmlc.transpose %x {perm = array<i64: 1, 2, 0>} : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
  %b = dmlc.transpose %a {perm = array<i64: 2, 0, 1>} : (tensor<3x4x2xf32>) -> tensor<2x3x4xf32>
  func.return %b : tensor<2x3x4xf32>
}

// -----

// Two squeezes of the last dim: both size-1 dims go, the 5000 stays.
// CHECK-LABEL: func.func @reshapes
// CHECK-NEXT: %[[Y:.*]] = dmlc.reshape %x {{.*}} : (tensor<1x5000x1x1xf32>) -> tensor<1x5000xf32>
// CHECK-NEXT: func.return %[[Y]]
func.func @reshapes(%x: tensor<1x5000x1x1xf32>) -> tensor<1x5000xf32> {
  %a = dmlc.reshape %x : (tensor<1x5000x1x1xf32>) -> tensor<1x5000x1xf32>
  %b = dmlc.reshape %a : (tensor<1x5000x1xf32>) -> tensor<1x5000xf32>
  func.return %b : tensor<1x5000xf32>
}

// -----

// CHECK-LABEL: func.func @moves_that_move_nothing
// CHECK-NEXT: func.return %x
func.func @moves_that_move_nothing(%x: tensor<4x8xf32>, %empty: tensor<0x8xf32>) -> tensor<4x8xf32> {
  %a = dmlc.reshape %x : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b = dmlc.cast %a {to = "f32"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %c = dmlc.slice %b {dim = 0 : i64, start = 0 : i64, stop = 4 : i64, step = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d = dmlc.broadcast %c : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %e = dmlc.concat %d, %empty {dim = 0 : i64} : (tensor<4x8xf32>, tensor<0x8xf32>) -> tensor<4x8xf32>
  %f = dmlc.pad %e {low = array<i64: 0, 0>, high = array<i64: 0, 0>, mode = "constant", value = 0.0 : f64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %g = dmlc.transpose %f {perm = array<i64: 0, 1>} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %g : tensor<4x8xf32>
}

// -----

// Elements 1 3 5 7 9 of x, of these 1 to 3: 3 5 7.
// CHECK-LABEL: func.func @slices
// CHECK-NEXT: dmlc.slice %x {dim = 0 : i64, start = 3 : i64, stop = 8 : i64, step = 2 : i64
// CHECK-NEXT: func.return
func.func @slices(%x: tensor<10xf32>) -> tensor<3xf32> {
  %a = dmlc.slice %x {dim = 0 : i64, start = 1 : i64, stop = 10 : i64, step = 2 : i64} : (tensor<10xf32>) -> tensor<5xf32>
  %b = dmlc.slice %a {dim = 0 : i64, start = 1 : i64, stop = 4 : i64, step = 1 : i64} : (tensor<5xf32>) -> tensor<3xf32>
  func.return %b : tensor<3xf32>
}

// -----

// CHECK-LABEL: func.func @neighbouring_slices
// CHECK-NEXT: dmlc.slice %x {dim = 0 : i64, start = 2 : i64, stop = 9 : i64, step = 1 : i64
// CHECK-NEXT: func.return
func.func @neighbouring_slices(%x: tensor<10xf32>) -> tensor<7xf32> {
  %a = dmlc.slice %x {dim = 0 : i64, start = 2 : i64, stop = 5 : i64} : (tensor<10xf32>) -> tensor<3xf32>
  %b = dmlc.slice %x {dim = 0 : i64, start = 5 : i64, stop = 9 : i64} : (tensor<10xf32>) -> tensor<4xf32>
  %c = dmlc.concat %a, %b {dim = 0 : i64} : (tensor<3xf32>, tensor<4xf32>) -> tensor<7xf32>
  func.return %c : tensor<7xf32>
}

// -----

// A gap, and the wrong order.
// CHECK-LABEL: func.func @slices_apart
// CHECK-COUNT-3: dmlc.slice
// CHECK-COUNT-2: dmlc.concat
func.func @slices_apart(%x: tensor<10xf32>) -> (tensor<6xf32>, tensor<7xf32>) {
  %a = dmlc.slice %x {dim = 0 : i64, start = 2 : i64, stop = 5 : i64} : (tensor<10xf32>) -> tensor<3xf32>
  %b = dmlc.slice %x {dim = 0 : i64, start = 6 : i64, stop = 9 : i64} : (tensor<10xf32>) -> tensor<3xf32>
  %c = dmlc.slice %x {dim = 0 : i64, start = 5 : i64, stop = 9 : i64} : (tensor<10xf32>) -> tensor<4xf32>
  %d = dmlc.concat %a, %b {dim = 0 : i64} : (tensor<3xf32>, tensor<3xf32>) -> tensor<6xf32>
  %e = dmlc.concat %c, %a {dim = 0 : i64} : (tensor<4xf32>, tensor<3xf32>) -> tensor<7xf32>
  func.return %d, %e : tensor<6xf32>, tensor<7xf32>
}

// -----

// CHECK-LABEL: func.func @neutral_elements
// CHECK-NEXT: func.return %x, %i
func.func @neutral_elements(%x: tensor<4xf32>, %i: tensor<4xi64>) -> (tensor<4xf32>, tensor<4xi64>) {
  %one = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %zero = dmlc.full {value = 0.0 : f64} : () -> tensor<4xf32>
  %minus_zero = dmlc.full {value = -0.0 : f64} : () -> tensor<f32>
  %no = dmlc.full {value = 0 : i64} : () -> tensor<i64>
  %a = dmlc.mul %one, %x : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %b = dmlc.div %a, %one : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %c = dmlc.pow %b, %one : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %d = dmlc.sub %c, %zero : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %e = dmlc.add %d, %minus_zero : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %j = dmlc.add %i, %no : (tensor<4xi64>, tensor<i64>) -> tensor<4xi64>
  func.return %e, %j : tensor<4xf32>, tensor<4xi64>
}

// -----

// x+0.0 turns -0.0 into 0.0; x*0 is NaN for infinity; 1*x of a larger shape, and 0-x, are no x.
// CHECK-LABEL: func.func @not_neutral
// CHECK: dmlc.add
// CHECK: dmlc.mul
// CHECK: dmlc.mul
// CHECK: dmlc.sub
// CHECK: func.return
func.func @not_neutral(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<4xf32>) {
  %zero = dmlc.full {value = 0.0 : f64} : () -> tensor<f32>
  %ones = dmlc.full {value = 1.0 : f64} : () -> tensor<2x1xf32>
  %a = dmlc.add %x, %zero : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %b = dmlc.mul %x, %zero : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %c = dmlc.mul %x, %ones : (tensor<4xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
  %d = dmlc.sub %zero, %x : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %b, %c, %d : tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<4xf32>
}

// -----

// Through float64 and back nothing is lost; through float16 it is.
// CHECK-LABEL: func.func @casts
// CHECK-NEXT: %[[HALF:.*]] = dmlc.cast %x {to = "f16"
// CHECK-NEXT: %[[BACK:.*]] = dmlc.cast %[[HALF]] {to = "f32"
// CHECK-NEXT: func.return %x, %[[BACK]]
func.func @casts(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.cast %x {to = "f64"} : (tensor<4xf32>) -> tensor<4xf64>
  %b = dmlc.cast %a {to = "f32"} : (tensor<4xf64>) -> tensor<4xf32>
  %c = dmlc.cast %x {to = "f16"} : (tensor<4xf32>) -> tensor<4xf16>
  %d = dmlc.cast %c {to = "f32"} : (tensor<4xf16>) -> tensor<4xf32>
  func.return %b, %d : tensor<4xf32>, tensor<4xf32>
}

// -----

// float32 holds integers up to 2^24 only, so int64 does not survive the way through it.
// CHECK-LABEL: func.func @integers_through_floats
// CHECK: dmlc.cast
// CHECK: dmlc.cast
func.func @integers_through_floats(%x: tensor<4xi64>) -> tensor<4xi64> {
  %a = dmlc.cast %x {to = "f32"} : (tensor<4xi64>) -> tensor<4xf32>
  %b = dmlc.cast %a {to = "i64"} : (tensor<4xf32>) -> tensor<4xi64>
  func.return %b : tensor<4xi64>
}

// -----

// A pointwise op broadcasts by itself, and a constant operand has rank 0.
// CHECK-LABEL: func.func @broadcast_operands
// CHECK: dmlc.add %x, %bias {{.*}} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
// CHECK: dmlc.mul %{{.*}} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
func.func @broadcast_operands(%x: tensor<4x8xf32>, %bias: tensor<8xf32>) -> tensor<4x8xf32> {
  %two = dmlc.full {value = 2.0 : f64} : () -> tensor<4x8xf32>
  %b = dmlc.broadcast %bias : (tensor<8xf32>) -> tensor<4x8xf32>
  %y = dmlc.add %x, %b : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = dmlc.mul %y, %two : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %z : tensor<4x8xf32>
}

// -----

// The only operand that has the result's shape keeps its broadcast.
// CHECK-LABEL: func.func @needed_broadcast
// CHECK: dmlc.broadcast
func.func @needed_broadcast(%bias: tensor<8xf32>) -> tensor<4x8xf32> {
  %two = dmlc.full {value = 2.0 : f64} : () -> tensor<f32>
  %b = dmlc.broadcast %bias : (tensor<8xf32>) -> tensor<4x8xf32>
  %z = dmlc.mul %b, %two : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  func.return %z : tensor<4x8xf32>
}

// -----

// 0.5 is the same number in float32 and float64; 0.1 is not, since float32 rounds it first.
// CHECK-LABEL: func.func @constants_move
// CHECK-NEXT: %[[TENTH:.*]] = dmlc.full {value = 0.1 : f64
// CHECK-NEXT: %[[HALF:.*]] = dmlc.full {value = 0.5 : f64{{.*}}} : () -> tensor<3x2xf64>
// CHECK-NEXT: %[[CAST:.*]] = dmlc.cast %[[TENTH]]
// CHECK-NEXT: func.return %[[HALF]], %[[CAST]]
func.func @constants_move() -> (tensor<3x2xf64>, tensor<f64>) {
  %half = dmlc.full {value = 0.5 : f64} : () -> tensor<2x3xf32>
  %tenth = dmlc.full {value = 0.1 : f64} : () -> tensor<f32>
  %a = dmlc.transpose %half {perm = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %b = dmlc.cast %a {to = "f64"} : (tensor<3x2xf32>) -> tensor<3x2xf64>
  %c = dmlc.cast %tenth {to = "f64"} : (tensor<f32>) -> tensor<f64>
  func.return %b, %c : tensor<3x2xf64>, tensor<f64>
}

// -----

// CHECK-LABEL: func.func @transposed_weight
// CHECK-NEXT: dmlc.linear %x, %w
func.func @transposed_weight(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>) -> tensor<4x16xf32> {
  %t = dmlc.transpose %w {perm = array<i64: 1, 0>} : (tensor<16x8xf32>) -> tensor<8x16xf32>
  %y = dmlc.matmul %x, %t : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  func.return %y : tensor<4x16xf32>
}

// -----

// A value that was made redundant is still an output: t2 stays under its own name.
// CHECK-LABEL: func.func @intermediate_output
// CHECK: %[[T2:.*]] = dmlc.mul %x
// CHECK: %[[T3:.*]] = dmlc.sigmoid %[[T2]]
// CHECK: %[[T4:.*]] = dmlc.mul %x, %[[T3]]
// CHECK: func.return %[[T4]], %[[T2]]
func.func @intermediate_output(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %k = dmlc.full {value = 1.702 : f64} : () -> tensor<f32>
  %t2 = dmlc.mul %x, %k : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
  %t3 = dmlc.sigmoid %t2 : (tensor<3xf32>) -> tensor<3xf32>
  %t4 = dmlc.mul %x, %t3 : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  func.return %t4, %t2 : tensor<3xf32>, tensor<3xf32>
}

// -----

// Where a decision has been taken, the op stays.
// CHECK-LABEL: func.func @decided
// CHECK: dmlc.mul
func.func @decided(%x: tensor<4xf32>) -> tensor<4xf32> {
  %one = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %y = dmlc.mul %x, %one {dmlc.group = 1 : i64} : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// -----

// A branch on a number is the side it takes; a loop that runs once is its body, one that runs never is what it begins with.
// CHECK-LABEL: func.func @decided
// CHECK-NEXT: %[[N:.*]] = dmlc.neg %x
// CHECK-NEXT: %[[R:.*]] = dmlc.reshape %s
// CHECK-NEXT: %[[A:.*]] = dmlc.add %[[N]], %[[R]]
// CHECK-NEXT: %[[T:.*]] = dmlc.reshape %[[A]]
// CHECK-NEXT: func.return %[[A]], %[[T]], %x
func.func @decided(%x: tensor<2xf32>, %s: tensor<1x2xf32>) -> (tensor<2xf32>, tensor<1x2xf32>, tensor<2xf32>) {
  %false = dmlc.full {value = false} : () -> tensor<i1>
  %y = dmlc.cond %false, %x {
  ^bb0(%a: tensor<2xf32>):
    %e = dmlc.exp %a : (tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %e : (tensor<2xf32>) -> ()
  }, {
  ^bb1(%a: tensor<2xf32>):
    %n = dmlc.neg %a : (tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %n : (tensor<2xf32>) -> ()
  } : (tensor<i1>, tensor<2xf32>) -> tensor<2xf32>
  %z, %rows = dmlc.scan %y, %s {count = 1 : i64, scanned = 1 : i64} {
  ^bb2(%i: tensor<i64>, %c: tensor<2xf32>, %r: tensor<2xf32>):
    %p = dmlc.add %c, %r : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %p, %p : (tensor<2xf32>, tensor<2xf32>) -> ()
  } : (tensor<2xf32>, tensor<1x2xf32>) -> (tensor<2xf32>, tensor<1x2xf32>)
  %never = dmlc.scan %x {count = 0 : i64} {
  ^bb3(%i: tensor<i64>, %c: tensor<2xf32>):
    %p = dmlc.exp %c : (tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %p : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>) -> tensor<2xf32>
  func.return %z, %rows, %never : tensor<2xf32>, tensor<1x2xf32>, tensor<2xf32>
}

// -----

// A predicate that depends on the data stays one.
// CHECK-LABEL: func.func @open
// CHECK: dmlc.cond %p {
func.func @open(%x: tensor<2xf32>, %p: tensor<i1>) -> tensor<2xf32> {
  %y = dmlc.cond %p {
    %e = dmlc.exp %x : (tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %e : (tensor<2xf32>) -> ()
  }, {
    dmlc.yield %x : (tensor<2xf32>) -> ()
  } : (tensor<i1>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}
