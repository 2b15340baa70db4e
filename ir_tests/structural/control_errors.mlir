// RUN: dmlc opt %s --split-input-file --expect-error | filecheck %s

// CHECK: error: what 'dmlc.scan' scans has a leading dim of 3, its number of iterations
func.func @length(%x: tensor<4x2xf32>, %h: tensor<2xf32>) -> tensor<2xf32> {
  %y = dmlc.scan %h, %x {count = 3 : i64, scanned = 1 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<2xf32>, %r: tensor<2xf32>):
    %a = dmlc.add %c, %r : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    dmlc.yield %a : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>, tensor<4x2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// -----

// CHECK: error: 'dmlc.scan' gives what it carries, in its operands' types, then stacks of 4 rows
func.func @stack(%x: tensor<4x2xf32>) -> tensor<3x2xf32> {
  %y = dmlc.scan %x {count = 4 : i64, scanned = 1 : i64} {
  ^bb0(%i: tensor<i64>, %r: tensor<2xf32>):
    dmlc.yield %r : (tensor<2xf32>) -> ()
  } : (tensor<4x2xf32>) -> tensor<3x2xf32>
  func.return %y : tensor<3x2xf32>
}

// -----

// CHECK: error: a region of 'dmlc.scan' yields tensor<4x2xf32> for a result of tensor<2xf32>
func.func @row(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %y = dmlc.scan %x {count = 4 : i64, scanned = 1 : i64} {
  ^bb0(%i: tensor<i64>, %r: tensor<2xf32>):
    dmlc.yield %x : (tensor<4x2xf32>) -> ()
  } : (tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// -----

// CHECK: error: 'dmlc.scan' has 1 operands but says that 1 are scanned and 1 shared
func.func @operands(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %y = dmlc.scan %x {count = 4 : i64, scanned = 1 : i64, shared = 1 : i64} {
  ^bb0(%i: tensor<i64>, %r: tensor<2xf32>):
    dmlc.yield %r : (tensor<2xf32>) -> ()
  } : (tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}

// -----

// CHECK: error: 'dmlc.random_uniform' in the body of 'dmlc.scan' would draw the same numbers in every iteration
func.func @random(%h: tensor<2xf32>, %seed: tensor<i64> {dmlc.role = "seed"}, %step: tensor<i64> {dmlc.role = "state"}) -> tensor<2xf32> {
  %y = dmlc.scan %h {count = 4 : i64} {
  ^bb0(%i: tensor<i64>, %c: tensor<2xf32>):
    %u = dmlc.random_uniform %seed, %step {stream = 0 : i64, shape = array<i64: 2>} : (tensor<i64>, tensor<i64>) -> tensor<2xf32>
    dmlc.yield %u : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// -----

// CHECK: error: 'dmlc.while' has two regions, its condition and its body, and a count of at least 0
func.func @one_region(%h: tensor<2xf32>) -> tensor<2xf32> {
  %y = dmlc.while %h {
  ^bb0(%c: tensor<2xf32>):
    dmlc.yield %c : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// -----

// CHECK: error: a region of 'dmlc.while' yields tensor<2xf32> for a result of tensor<i1>
func.func @condition(%h: tensor<2xf32>) -> tensor<2xf32> {
  %y = dmlc.while %h {
  ^bb0(%c: tensor<2xf32>):
    dmlc.yield %c : (tensor<2xf32>) -> ()
  }, {
  ^bb0(%c: tensor<2xf32>):
    dmlc.yield %c : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// -----

// CHECK: error: the regions of 'dmlc.while' take its operands
func.func @arguments(%h: tensor<2xf32>, %p: tensor<i1>) -> tensor<2xf32> {
  %y = dmlc.while %h {
  ^bb0:
    dmlc.yield %p : (tensor<i1>) -> ()
  }, {
  ^bb0(%c: tensor<2xf32>):
    dmlc.yield %c : (tensor<2xf32>) -> ()
  } : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// -----

// CHECK: error: the regions of 'dmlc.cond' take its operands after the first
func.func @branches(%h: tensor<2xf32>, %p: tensor<i1>) -> tensor<2xf32> {
  %y = dmlc.cond %p, %h {
  ^bb0(%c: tensor<2xf32>):
    dmlc.yield %c : (tensor<2xf32>) -> ()
  }, {
    dmlc.yield %h : (tensor<2xf32>) -> ()
  } : (tensor<i1>, tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}
