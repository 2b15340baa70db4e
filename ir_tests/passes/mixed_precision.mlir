// RUN: dmlc opt %s --split-input-file --passes mixed-precision --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes mixed-precision,mixed-precision,mixed-precision --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes mixed-precision --check

// Contractions in bf16 and what lies between them; the norm, the sum of the residual stream and the program's result in f32. A value is cast once
// for all who want it so.
// CHECK-LABEL: func.func @block
// CHECK-SAME: -> tensor<64x128xf32>
// CHECK-NEXT: %[[N:.*]] = dmlc.rms_norm %x, %g {{.*}} -> tensor<64x128xf32>
// CHECK-NEXT: %[[NL:.*]] = dmlc.cast %[[N]] {to = "bf16"
// CHECK-NEXT: %[[W1:.*]] = dmlc.cast %w1 {to = "bf16"
// CHECK-NEXT: %[[A:.*]] = dmlc.matmul %[[NL]], %[[W1]] {{{.*}}dmlc.precision = "low"} : (tensor<64x128xbf16>, tensor<128x256xbf16>) -> tensor<64x256xbf16>
// CHECK-NEXT: %[[B1:.*]] = dmlc.cast %b1 {to = "bf16"
// CHECK-NEXT: %[[C:.*]] = dmlc.add %[[A]], %[[B1]] {{.*}} -> tensor<64x256xbf16>
// CHECK-NEXT: %[[H:.*]] = dmlc.gelu %[[C]] {{.*}} -> tensor<64x256xbf16>
// CHECK-NEXT: %[[W3:.*]] = dmlc.cast %w3 {to = "bf16"
// CHECK-NEXT: %[[U:.*]] = dmlc.matmul %[[NL]], %[[W3]]
// CHECK-NEXT: %[[G:.*]] = dmlc.mul %[[H]], %[[U]] {{.*}} -> tensor<64x256xbf16>
// CHECK-NEXT: %[[W2:.*]] = dmlc.cast %w2 {to = "bf16"
// CHECK-NEXT: %[[D:.*]] = dmlc.matmul %[[G]], %[[W2]]
// CHECK-NEXT: %[[DH:.*]] = dmlc.cast %[[D]] {to = "f32"
// CHECK-NEXT: %[[Y:.*]] = dmlc.add %x, %[[DH]] {{{.*}}dmlc.precision = "high"} : (tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
// CHECK-NEXT: func.return %[[Y]]
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @block(%x: tensor<64x128xf32>, %w1: tensor<128x256xf32> {dmlc.role = "param"}, %b1: tensor<256xf32> {dmlc.role = "param"}, %w2: tensor<256x128xf32> {dmlc.role = "param"}, %w3: tensor<128x256xf32> {dmlc.role = "param"}, %g: tensor<128xf32> {dmlc.role = "param"}) -> tensor<64x128xf32> {
    %n = dmlc.rms_norm %x, %g {eps = 1.0e-06 : f64} : (tensor<64x128xf32>, tensor<128xf32>) -> tensor<64x128xf32>
    %a = dmlc.matmul %n, %w1 : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    %c = dmlc.add %a, %b1 : (tensor<64x256xf32>, tensor<256xf32>) -> tensor<64x256xf32>
    %h = dmlc.gelu %c : (tensor<64x256xf32>) -> tensor<64x256xf32>
    %u = dmlc.matmul %n, %w3 : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    %m = dmlc.mul %h, %u : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<64x256xf32>
    %d = dmlc.matmul %m, %w2 : (tensor<64x256xf32>, tensor<256x128xf32>) -> tensor<64x128xf32>
    %y = dmlc.add %x, %d : (tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
    func.return %y : tensor<64x128xf32>
  }
}

// -----

// Between two f32 ops nothing goes down and up again: the scale of a softmax stays where its logits are. Squares for a norm are summed in f32.
// CHECK-LABEL: func.func @stays_high
// CHECK: dmlc.exp %x {dmlc.precision = "high"} : (tensor<64x128xf32>)
// CHECK-NEXT: dmlc.softmax {{.*}} -> tensor<64x128xf32>
// CHECK-NEXT: dmlc.mul {{.*}} {{{.*}}dmlc.precision = "high"} : (tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
// CHECK-NEXT: dmlc.reduce_sum {{.*}} -> tensor<64xf32>
// CHECK: dmlc.matmul {{.*}} -> tensor<64x4xbf16>
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @stays_high(%x: tensor<64x128xf32>, %w: tensor<128x4xf32> {dmlc.role = "param"}) -> (tensor<64xf32>, tensor<64x4xf32>) {
    %a = dmlc.exp %x : (tensor<64x128xf32>) -> tensor<64x128xf32>
    %s = dmlc.softmax %a {dim = 1 : i64} : (tensor<64x128xf32>) -> tensor<64x128xf32>
    %q = dmlc.mul %s, %s : (tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
    %r = dmlc.reduce_sum %q {dims = array<i64: 1>} : (tensor<64x128xf32>) -> tensor<64xf32>
    %m = dmlc.matmul %x, %w : (tensor<64x128xf32>, tensor<128x4xf32>) -> tensor<64x4xf32>
    func.return %r, %m : tensor<64xf32>, tensor<64x4xf32>
  }
}

// -----

// No contraction: nothing gains, and a remark says so.
// CHECK: remark: mixed-precision: no op gains from bf16: the program has no f32 contraction
// CHECK-LABEL: func.func @pointwise
// CHECK-NOT: bf16
// CHECK: return
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @pointwise(%x: tensor<64x128xf32>) -> tensor<64x128xf32> {
    %a = dmlc.exp %x : (tensor<64x128xf32>) -> tensor<64x128xf32>
    %y = dmlc.softmax %a {dim = 1 : i64} : (tensor<64x128xf32>) -> tensor<64x128xf32>
    func.return %y : tensor<64x128xf32>
  }
}

// -----

// Not asked for.
// CHECK-LABEL: func.func @full
// CHECK-NOT: bf16
// CHECK: return
builtin.module attributes {dmlc.request = {precision = "fp32"}} {
  func.func @full(%x: tensor<64x128xf32>, %w: tensor<128x256xf32> {dmlc.role = "param"}) -> tensor<64x256xf32> {
    %a = dmlc.matmul %x, %w : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    func.return %a : tensor<64x256xf32>
  }
}

// -----

// Decided by hand: applied as written.
// CHECK-LABEL: func.func @by_hand
// CHECK-NEXT: dmlc.matmul %x, %w1 {dmlc.precision = "high"} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
// CHECK-NEXT: dmlc.relu {{.*}} -> tensor<64x256xf32>
// CHECK: dmlc.matmul {{.*}} -> tensor<64x128xbf16>
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @by_hand(%x: tensor<64x128xf32>, %w1: tensor<128x256xf32> {dmlc.role = "param"}, %w2: tensor<256x128xf32> {dmlc.role = "param"}) -> tensor<64x128xf32> {
    %a = dmlc.matmul %x, %w1 {dmlc.precision = "high"} : (tensor<64x128xf32>, tensor<128x256xf32>) -> tensor<64x256xf32>
    %h = dmlc.relu %a {dmlc.precision = "high"} : (tensor<64x256xf32>) -> tensor<64x256xf32>
    %d = dmlc.matmul %h, %w2 {dmlc.precision = "low"} : (tensor<64x256xf32>, tensor<256x128xf32>) -> tensor<64x128xf32>
    func.return %d : tensor<64x128xf32>
  }
}

// -----

// The user's own casts and dtypes stay: an op on f64 or f16 is not ours, an integer one neither.
// CHECK-LABEL: func.func @own_dtypes
// CHECK: dmlc.cast %x {to = "f64"} : (tensor<64x128xf32>) -> tensor<64x128xf64>
// CHECK-NEXT: dmlc.matmul {{.*}} -> tensor<64x4xf64>
// CHECK-NEXT: dmlc.embedding %t, %i {{.*}} -> tensor<64x128xf32>
// CHECK: dmlc.matmul {{.*}} -> tensor<64x4xbf16>
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @own_dtypes(%x: tensor<64x128xf32>, %v: tensor<128x4xf64> {dmlc.role = "param"}, %t: tensor<9x128xf32> {dmlc.role = "param"}, %i: tensor<64xi64>, %w: tensor<128x4xf32> {dmlc.role = "param"}) -> (tensor<64x4xf64>, tensor<64x128xf32>, tensor<64x4xf32>) {
    %d = dmlc.cast %x {to = "f64"} : (tensor<64x128xf32>) -> tensor<64x128xf64>
    %a = dmlc.matmul %d, %v : (tensor<64x128xf64>, tensor<128x4xf64>) -> tensor<64x4xf64>
    %e = dmlc.embedding %t, %i : (tensor<9x128xf32>, tensor<64xi64>) -> tensor<64x128xf32>
    %s = dmlc.add %e, %x : (tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
    %m = dmlc.matmul %s, %w : (tensor<64x128xf32>, tensor<128x4xf32>) -> tensor<64x4xf32>
    func.return %a, %s, %m : tensor<64x4xf64>, tensor<64x128xf32>, tensor<64x4xf32>
  }
}

// -----

// A region keeps its dtypes: what it takes from outside is cast before it.
// CHECK-LABEL: func.func @region
// CHECK: %[[M:.*]] = dmlc.matmul {{.*}} -> tensor<4x4xbf16>
// CHECK-NEXT: %[[H:.*]] = dmlc.cast %[[M]] {to = "f32"
// CHECK-NEXT: dmlc.cond %p {
// CHECK-NEXT: dmlc.exp %[[H]] {{.*}} : (tensor<4x4xf32>) -> tensor<4x4xf32>
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @region(%x: tensor<4x4xf32>, %w: tensor<4x4xf32> {dmlc.role = "param"}, %p: tensor<i1>) -> tensor<4x4xf32> {
    %m = dmlc.matmul %x, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %y = dmlc.cond %p {
      %e = dmlc.exp %m : (tensor<4x4xf32>) -> tensor<4x4xf32>
      dmlc.yield %e : (tensor<4x4xf32>) -> ()
    }, {
      dmlc.yield %m : (tensor<4x4xf32>) -> ()
    } : (tensor<i1>) -> tensor<4x4xf32>
    func.return %y : tensor<4x4xf32>
  }
}

// -----

// Inside a loop products are in bf16 too; what it carries, takes and gives stays f32. The casts of weights are for `hoist` to take out.
// CHECK-LABEL: func.func @loop
// CHECK: dmlc.scan %h, %x {count = 3 : i64, scanned = 1 : i64
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %[[C:.*]]: tensor<4x4xf32>, %[[R:.*]]: tensor<4x4xf32>):
// CHECK-NEXT: %[[CL:.*]] = dmlc.cast %[[C]] {to = "bf16"
// CHECK-NEXT: %[[W:.*]] = dmlc.cast %w {to = "bf16"
// CHECK-NEXT: dmlc.matmul %[[CL]], %[[W]] {{.*}} -> tensor<4x4xbf16>
// CHECK: dmlc.tanh {{.*}} -> tensor<4x4xf32>
// CHECK-NEXT: dmlc.yield %{{.*}}, %{{.*}} : (tensor<4x4xf32>, tensor<4x4xf32>) -> ()
builtin.module attributes {dmlc.request = {precision = "bf16"}} {
  func.func @loop(%h: tensor<4x4xf32>, %x: tensor<3x4x4xf32>, %w: tensor<4x4xf32> {dmlc.role = "param"}) -> (tensor<4x4xf32>, tensor<3x4x4xf32>) {
    %y, %s = dmlc.scan %h, %x {count = 3 : i64, scanned = 1 : i64} {
    ^bb0(%i: tensor<i64>, %c: tensor<4x4xf32>, %r: tensor<4x4xf32>):
      %m = dmlc.matmul %c, %w : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %a = dmlc.add %m, %r : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %t = dmlc.tanh %a : (tensor<4x4xf32>) -> tensor<4x4xf32>
      dmlc.yield %t, %t : (tensor<4x4xf32>, tensor<4x4xf32>) -> ()
    } : (tensor<4x4xf32>, tensor<3x4x4xf32>) -> (tensor<4x4xf32>, tensor<3x4x4xf32>)
    func.return %y, %s : tensor<4x4xf32>, tensor<3x4x4xf32>
  }
}
