// RUN: dmlc opt %s --split-input-file --expect-error --passes fuse | filecheck %s

// The group would need what it gives to the matrix product.
// CHECK: error: the ops of group 0 cannot run together
func.func @cycle(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = dmlc.exp %x {dmlc.group = 0 : i64} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %m = dmlc.matmul %a, %a : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = dmlc.add %m, %a {dmlc.group = 0 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %b : tensor<8x8xf32>
}

// -----

// CHECK: error: 'dmlc.matmul' is in group 0 but cannot stand in a kernel
func.func @no_text(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = dmlc.exp %x {dmlc.group = 0 : i64} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %m = dmlc.matmul %a, %a {dmlc.group = 0 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %m : tensor<8x8xf32>
}

// -----

// CHECK: error: a group cannot be one kernel: a reduction does not run over the last dims
func.func @rows(%x: tensor<8x8xf32>) -> tensor<8xf32> {
  %a = dmlc.exp %x {dmlc.group = 0 : i64} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = dmlc.reduce_sum %a {dims = array<i64: 0>, dmlc.group = 0 : i64} : (tensor<8x8xf32>) -> tensor<8xf32>
  func.return %s : tensor<8xf32>
}

// -----

// CHECK: error: 'dmlc.matmul' cannot stand in a kernel
func.func @written(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = kernel.fused %x {
  ^bb0(%a: tensor<8x8xf32>):
    %m = dmlc.matmul %a, %a : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    kernel.yield %m : (tensor<8x8xf32>) -> ()
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}

// -----

// CHECK: error: {{.*}}kernel{{.*}}
func.func @unknown(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = kernel.call %x {kernel = "nobody"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}
