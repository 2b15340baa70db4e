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

// -----

// A loop gives a stack and carries a value that nobody reads, and takes rows and a shared value for them; a counter goes on, since the rows need it.
// CHECK-LABEL: func.func @loop
// CHECK-NEXT: %[[ZERO:.*]] = dmlc.full
// CHECK-NEXT: %{{.*}}, %[[ROWS:.*]] = dmlc.scan %[[ZERO]], %x {count = 3 : i64, scanned = 1 : i64} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %[[N:.*]]: tensor<f32>, %[[R:.*]]: tensor<2xf32>):
// CHECK-NEXT: %[[M:.*]] = dmlc.add %[[N]], %[[N]]
// CHECK-NEXT: %[[A:.*]] = dmlc.add %[[R]], %[[N]]
// CHECK-NEXT: dmlc.yield %[[M]], %[[A]] : (tensor<f32>, tensor<2xf32>) -> ()
// CHECK: func.return %[[ROWS]]
func.func @loop(%x: tensor<3x2xf32>, %y: tensor<3x2xf32>, %w: tensor<2xf32>) -> tensor<3x2xf32> {
  %zero = dmlc.full {value = 1.0 : f64} : () -> tensor<f32>
  %n, %c, %rows, %more = dmlc.scan %zero, %w, %x, %y, %w {count = 3 : i64, scanned = 2 : i64, shared = 1 : i64} {
  ^bb0(%i: tensor<i64>, %k: tensor<f32>, %s: tensor<2xf32>, %r: tensor<2xf32>, %q: tensor<2xf32>, %v: tensor<2xf32>):
    %m = dmlc.add %k, %k : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %t = dmlc.mul %s, %v : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %a = dmlc.add %r, %k : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
    %b = dmlc.mul %q, %t : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %m, %t, %a, %b : (tensor<f32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> ()
  } : (tensor<f32>, tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<2xf32>) -> (tensor<f32>, tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>)
  func.return %rows : tensor<3x2xf32>
}

// -----

// What the condition reads is carried on though nobody reads it afterwards; a branch drops the result that is not read.
// CHECK-LABEL: func.func @condition
// CHECK: dmlc.while %{{.*}}, %x {
// CHECK: dmlc.cond %p, %x {
// CHECK-NEXT: ^{{.*}}(%[[A:.*]]: tensor<2xf32>):
// CHECK-NEXT: dmlc.yield %[[A]] : (tensor<2xf32>) -> ()
func.func @condition(%x: tensor<2xf32>, %w: tensor<2xf32>, %p: tensor<i1>) -> (tensor<2xf32>, tensor<2xf32>) {
  %zero = dmlc.full {value = 0 : i64} : () -> tensor<i64>
  %n, %d, %y = dmlc.while %zero, %w, %x {
  ^bb0(%k: tensor<i64>, %u: tensor<2xf32>, %c: tensor<2xf32>):
    %most = dmlc.full {value = 3 : i64} : () -> tensor<i64>
    %go = dmlc.lt %k, %most : (tensor<i64>, tensor<i64>) -> tensor<i1>
    dmlc.yield %go : (tensor<i1>) -> ()
  }, {
  ^bb1(%k: tensor<i64>, %u: tensor<2xf32>, %c: tensor<2xf32>):
    %one = dmlc.full {value = 1 : i64} : () -> tensor<i64>
    %next = dmlc.add %k, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
    %v = dmlc.add %u, %c : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %e = dmlc.exp %c : (tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %next, %v, %e : (tensor<i64>, tensor<2xf32>, tensor<2xf32>) -> ()
  } : (tensor<i64>, tensor<2xf32>, tensor<2xf32>) -> (tensor<i64>, tensor<2xf32>, tensor<2xf32>)
  %f, %g = dmlc.cond %p, %x, %w {
  ^bb2(%a: tensor<2xf32>, %b: tensor<2xf32>):
    dmlc.yield %a, %b : (tensor<2xf32>, tensor<2xf32>) -> ()
  }, {
  ^bb3(%a: tensor<2xf32>, %b: tensor<2xf32>):
    dmlc.yield %a, %a : (tensor<2xf32>, tensor<2xf32>) -> ()
  } : (tensor<i1>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  func.return %y, %f : tensor<2xf32>, tensor<2xf32>
}

// -----

// A loop in a loop goes with what only it read: the state that the outer one carries for it.
// CHECK-LABEL: func.func @inner
// CHECK-NEXT: dmlc.scan %x {count = 3 : i64} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %[[C:.*]]: tensor<2xf32>):
// CHECK-NEXT: %[[E:.*]] = dmlc.exp %[[C]]
// CHECK-NEXT: dmlc.yield %[[E]] : (tensor<2xf32>) -> ()
func.func @inner(%x: tensor<2xf32>, %w: tensor<2xf32>) -> tensor<2xf32> {
  %y, %z = dmlc.scan %x, %w {count = 3 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<2xf32>, %d: tensor<2xf32>):
    %e = dmlc.exp %c : (tensor<2xf32>) -> tensor<2xf32>
    %k = dmlc.scan %d {count = 2 : i64} {
    ^bb1(%j: tensor<i64>, %f: tensor<2xf32>):
      %g = dmlc.add %f, %d : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
      dmlc.yield %g : (tensor<2xf32>) -> ()
    } : (tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %e, %k : (tensor<2xf32>, tensor<2xf32>) -> ()
  } : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  func.return %y : tensor<2xf32>
}
