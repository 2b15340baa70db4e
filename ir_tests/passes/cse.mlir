// RUN: dmlc opt %s --split-input-file --passes cse | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes cse --check

// The second of two equal outputs becomes the first; each output stays in its place.
// CHECK-LABEL: func.func @equal_outputs
// CHECK: %[[T:.*]] = dmlc.cos %x
// CHECK-NEXT: %[[S:.*]] = dmlc.reshape %[[T]]
// CHECK-NEXT: %[[F:.*]] = dmlc.floor %[[S]]
// CHECK-NEXT: func.return %[[S]], %[[F]]
func.func @equal_outputs(%x: tensor<1x1x1x7xf32>) -> (tensor<1x1x7xf32>, tensor<1x1x7xf32>) {
  %t = dmlc.cos %x : (tensor<1x1x1x7xf32>) -> tensor<1x1x1x7xf32>
  %o1 = dmlc.reshape %t : (tensor<1x1x1x7xf32>) -> tensor<1x1x7xf32>
  %s2 = dmlc.reshape %t : (tensor<1x1x1x7xf32>) -> tensor<1x1x7xf32>
  %o2 = dmlc.floor %s2 : (tensor<1x1x7xf32>) -> tensor<1x1x7xf32>
  func.return %o1, %o2 : tensor<1x1x7xf32>, tensor<1x1x7xf32>
}

// -----

// Operands of a commutative op may come in either order; those of a subtraction may not.
// CHECK-LABEL: func.func @commutative
// CHECK-COUNT-1: dmlc.add
// CHECK-NOT: dmlc.add
// CHECK-COUNT-2: dmlc.sub
func.func @commutative(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.add %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b = dmlc.add %y, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c = dmlc.sub %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d = dmlc.sub %y, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %b, %c, %d : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Two casts to different types, two reshapes to different shapes: attributes and result types count.
// CHECK-LABEL: func.func @attributes_count
// CHECK-COUNT-2: dmlc.cast
// CHECK-COUNT-2: dmlc.reshape
func.func @attributes_count(%x: tensor<4xf32>) -> (tensor<4xf64>, tensor<4xf16>, tensor<2x2xf32>, tensor<1x4xf32>) {
  %a = dmlc.cast %x {to = "f64"} : (tensor<4xf32>) -> tensor<4xf64>
  %b = dmlc.cast %x {to = "f16"} : (tensor<4xf32>) -> tensor<4xf16>
  %c = dmlc.reshape %x : (tensor<4xf32>) -> tensor<2x2xf32>
  %d = dmlc.reshape %x : (tensor<4xf32>) -> tensor<1x4xf32>
  func.return %a, %b, %c, %d : tensor<4xf64>, tensor<4xf16>, tensor<2x2xf32>, tensor<1x4xf32>
}

// -----

// Two topk with equal attributes are one, also in their second result.
// CHECK-LABEL: func.func @several_results
// CHECK: %[[R0:.*]], %[[R1:.*]] = dmlc.topk
// CHECK-NOT: dmlc.topk
// CHECK: func.return %[[R0]], %[[R1]]
func.func @several_results(%x: tensor<9xf32>) -> (tensor<3xf32>, tensor<3xi64>) {
  %a, %b = dmlc.topk %x {k = 3 : i64, dim = 0 : i64} : (tensor<9xf32>) -> (tensor<3xf32>, tensor<3xi64>)
  %c, %d = dmlc.topk %x {k = 3 : i64, dim = 0 : i64} : (tensor<9xf32>) -> (tensor<3xf32>, tensor<3xi64>)
  func.return %a, %d : tensor<3xf32>, tensor<3xi64>
}

// -----

// Regions that differ in one attribute inside are two; equal ones are one, however their arguments are called.
// CHECK-LABEL: func.func @regions
// CHECK-COUNT-2: dmlc.scan
// CHECK-NOT: dmlc.scan
func.func @regions(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.scan %x {count = 2 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<4xf32>):
    %y = dmlc.clamp %c {min = 0.5 : f64} : (tensor<4xf32>) -> tensor<4xf32>
    dmlc.yield %y : (tensor<4xf32>) -> ()
  } : (tensor<4xf32>) -> tensor<4xf32>
  %b = dmlc.scan %x {count = 2 : i64} {
  ^bb1(%j: tensor<i64>, %d: tensor<4xf32>):
    %z = dmlc.clamp %d {min = 0.5 : f64} : (tensor<4xf32>) -> tensor<4xf32>
    dmlc.yield %z : (tensor<4xf32>) -> ()
  } : (tensor<4xf32>) -> tensor<4xf32>
  %e = dmlc.scan %x {count = 2 : i64} {
  ^bb2(%k: tensor<i64>, %f: tensor<4xf32>):
    %g = dmlc.clamp %f {min = 0.25 : f64} : (tensor<4xf32>) -> tensor<4xf32>
    dmlc.yield %g : (tensor<4xf32>) -> ()
  } : (tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %b, %e : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Equal values outside and inside a loop are one.
// CHECK-LABEL: func.func @into_a_region
// CHECK: %[[E:.*]] = dmlc.exp %x
// CHECK-NOT: dmlc.exp
// CHECK: dmlc.add %{{.*}}, %[[E]]
func.func @into_a_region(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %e = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  %a = dmlc.scan %x {count = 2 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<4xf32>):
    %f = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
    %y = dmlc.add %c, %f : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    dmlc.yield %y : (tensor<4xf32>) -> ()
  } : (tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %e : tensor<4xf32>, tensor<4xf32>
}

// -----

// Recomputed values sit behind barriers: cse does not see through one, but equal barriers are one.
// CHECK-LABEL: func.func @barriers
// CHECK-COUNT-2: dmlc.exp
// CHECK-NOT: dmlc.exp
func.func @barriers(%x: tensor<4xf32>, %t: tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  %b1 = dmlc.barrier %x, %t : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %b2 = dmlc.barrier %x, %t : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %c = dmlc.exp %b1 : (tensor<4xf32>) -> tensor<4xf32>
  %d = dmlc.exp %b2 : (tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %c, %d : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// What is random is never merged.
// CHECK-LABEL: func.func @random
// CHECK-COUNT-2: dmlc.random_normal
func.func @random(%seed: tensor<i64> {dmlc.role = "seed"}, %step: tensor<i64> {dmlc.range = array<i64: 0, 4>}) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.random_normal %seed, %step {shape = array<i64: 4>, stream = 1 : i64} : (tensor<i64>, tensor<i64>) -> tensor<4xf32>
  %b = dmlc.random_normal %seed, %step {shape = array<i64: 4>, stream = 2 : i64} : (tensor<i64>, tensor<i64>) -> tensor<4xf32>
  func.return %a, %b : tensor<4xf32>, tensor<4xf32>
}

// -----

// A gradient op that computes what a forward op has computed is that op; whose gradient it was says nothing about its value. An op of the
// update stays one of the update.
// CHECK-LABEL: func.func @gradients
// CHECK-COUNT-2: dmlc.exp
// CHECK-NOT: dmlc.exp
func.func @gradients(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.exp %x : (tensor<4xf32>) -> tensor<4xf32>
  %b = dmlc.exp %x {dmlc.of = "7"} : (tensor<4xf32>) -> tensor<4xf32>
  %c = dmlc.exp %x {dmlc.of = "8"} : (tensor<4xf32>) -> tensor<4xf32>
  %d = dmlc.exp %x {dmlc.of = "8", dmlc.phase = "update"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %b, %c, %d : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Dropout and its gradient draw the same numbers, but on different values; even two dropouts of one value and one stream are left apart.
// CHECK-LABEL: func.func @dropouts
// CHECK-COUNT-3: dmlc.dropout
func.func @dropouts(%x: tensor<4xf32>, %g: tensor<4xf32>, %seed: tensor<i64> {dmlc.role = "seed"}, %step: tensor<i64> {dmlc.range = array<i64: 0, 4>}) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.dropout %x, %seed, %step {p = 0.5 : f64, stream = 1 : i64} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  %b = dmlc.dropout %g, %seed, %step {p = 0.5 : f64, stream = 1 : i64} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  %c = dmlc.dropout %x, %seed, %step {p = 0.5 : f64, stream = 1 : i64} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  func.return %a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
