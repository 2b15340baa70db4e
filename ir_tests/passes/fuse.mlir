// RUN: dmlc opt %s --split-input-file --passes fuse --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes fuse --check
// RUN: dmlc opt %s --split-input-file --passes 'fuse{min-ops=100}' --remarks | filecheck %s --check-prefix=FEW

// Activation, residual and norm run row by row: one kernel with two results. The residual of the second layer waits for its matrix product.
// CHECK-NOT: remark
// CHECK-LABEL: func.func @two_layers
// CHECK: dmlc.matmul
// CHECK-NEXT: %[[K:.*]]_0, %[[K2:.*]]_1 = kernel.fused %{{.*}}, %x, %w, %b {dmlc.id = "1.fused"} {
// CHECK: dmlc.gelu
// CHECK-NEXT: dmlc.add
// CHECK-NEXT: dmlc.layer_norm
// CHECK-NEXT: kernel.yield
// CHECK: dmlc.matmul
// CHECK-NEXT: kernel.fused
// CHECK: dmlc.matmul
// FEW-NOT: kernel.fused
func.func @two_layers(%x: tensor<4x16x64xf32>, %w: tensor<64xf32>, %b: tensor<64xf32>, %m: tensor<64x64xf32>) -> tensor<4x16x64xf32> {
  %y = dmlc.matmul %x, %m : (tensor<4x16x64xf32>, tensor<64x64xf32>) -> tensor<4x16x64xf32>
  %g = dmlc.gelu %y : (tensor<4x16x64xf32>) -> tensor<4x16x64xf32>
  %s = dmlc.add %g, %x : (tensor<4x16x64xf32>, tensor<4x16x64xf32>) -> tensor<4x16x64xf32>
  %n = dmlc.layer_norm %s, %w, %b {eps = 1.0e-05 : f64} : (tensor<4x16x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<4x16x64xf32>
  %y2 = dmlc.matmul %n, %m : (tensor<4x16x64xf32>, tensor<64x64xf32>) -> tensor<4x16x64xf32>
  %g2 = dmlc.gelu %y2 : (tensor<4x16x64xf32>) -> tensor<4x16x64xf32>
  %s2 = dmlc.add %g2, %s : (tensor<4x16x64xf32>, tensor<4x16x64xf32>) -> tensor<4x16x64xf32>
  %n2 = dmlc.layer_norm %s2, %w, %b {eps = 1.0e-05 : f64} : (tensor<4x16x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<4x16x64xf32>
  %y3 = dmlc.matmul %n2, %m : (tensor<4x16x64xf32>, tensor<64x64xf32>) -> tensor<4x16x64xf32>
  func.return %y3 : tensor<4x16x64xf32>
}

// -----

// Constants, broadcasts and added dims cost nothing: each kernel makes its own, and a row's total passes through them inside.
// CHECK-LABEL: func.func @softmax_in_pieces
// CHECK-NEXT: %[[Y:.*]] = kernel.fused %x
// CHECK: dmlc.full
// CHECK: dmlc.reduce_max
// CHECK: dmlc.reshape
// CHECK: dmlc.reduce_sum
// CHECK: dmlc.broadcast
// CHECK: kernel.yield
// CHECK-NOT: dmlc.{{reshape|broadcast|full}}
// CHECK: func.return %[[Y]]
func.func @softmax_in_pieces(%x: tensor<6x40xf32>) -> tensor<6x40xf32> {
  %c = dmlc.full {value = 0.125 : f64} : () -> tensor<f32>
  %x1 = dmlc.mul %x, %c : (tensor<6x40xf32>, tensor<f32>) -> tensor<6x40xf32>
  %m = dmlc.reduce_max %x1 {dims = array<i64: 1>} : (tensor<6x40xf32>) -> tensor<6xf32>
  %m1 = dmlc.reshape %m : (tensor<6xf32>) -> tensor<6x1xf32>
  %d = dmlc.sub %x1, %m1 : (tensor<6x40xf32>, tensor<6x1xf32>) -> tensor<6x40xf32>
  %e = dmlc.exp %d : (tensor<6x40xf32>) -> tensor<6x40xf32>
  %t = dmlc.reduce_sum %e {dims = array<i64: 1>, keepdim = true} : (tensor<6x40xf32>) -> tensor<6x1xf32>
  %t1 = dmlc.broadcast %t : (tensor<6x1xf32>) -> tensor<6x40xf32>
  %y = dmlc.div %e, %t1 : (tensor<6x40xf32>, tensor<6x40xf32>) -> tensor<6x40xf32>
  func.return %y : tensor<6x40xf32>
}

// -----

// A norm alone is a kernel, a pointwise op alone is not.
// CHECK-LABEL: func.func @alone
// CHECK-NEXT: dmlc.exp
// CHECK-NEXT: dmlc.matmul
// CHECK-NEXT: kernel.fused
// CHECK-NEXT: ^
// CHECK-NEXT: dmlc.softmax
// CHECK-NEXT: kernel.yield
func.func @alone(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %e = dmlc.exp %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %m = dmlc.matmul %e, %e : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = dmlc.softmax %m {dim = 1 : i64} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}

// -----

// Rows of one kernel are not the columns of another; a sum over the first dim is no row reduction.
// CHECK-DAG: remark: fuse: 'dmlc.softmax' is not fused with 'dmlc.exp' {{.*}} a reduction does not run over the last dims
// CHECK-DAG: remark: fuse: 'dmlc.reduce_sum' is not fused with 'dmlc.exp' {{.*}} a reduction does not run over the last dims
// CHECK-LABEL: func.func @other_rows
// CHECK-NOT: kernel.fused
func.func @other_rows(%x: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<16xf32>) {
  %e = dmlc.exp %x : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = dmlc.softmax %e {dim = 0 : i64} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %s = dmlc.reduce_sum %e {dims = array<i64: 0>} : (tensor<8x16xf32>) -> tensor<16xf32>
  func.return %y, %s : tensor<8x16xf32>, tensor<16xf32>
}

// -----

// Both readers of x run over it once; y alone has fewer elements than the kernel has rows and stays outside.
// CHECK: remark: fuse: 'dmlc.add' is not fused with 'dmlc.exp' {{.*}} a result would have fewer elements than the kernel has rows
// CHECK-LABEL: func.func @siblings
// CHECK-NEXT: %[[E:.*]] = dmlc.exp %y
// CHECK-NEXT: kernel.fused %x, %[[E]]
// CHECK-NEXT: ^
// CHECK-DAG: dmlc.cos
// CHECK-DAG: dmlc.add
func.func @siblings(%x: tensor<64x32xf32>, %y: tensor<32xf32>) -> (tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>) {
  %a = dmlc.cos %x : (tensor<64x32xf32>) -> tensor<64x32xf32>
  %e = dmlc.exp %y : (tensor<32xf32>) -> tensor<32xf32>
  %b = dmlc.add %x, %e : (tensor<64x32xf32>, tensor<32xf32>) -> tensor<64x32xf32>
  func.return %a, %b, %e : tensor<64x32xf32>, tensor<64x32xf32>, tensor<32xf32>
}

// -----

// The sum that a collective carries is not made to wait for the rest; what does not need a collective's result does not wait for it.
// CHECK-DAG: remark: fuse: 'dmlc.exp' is not fused with 'dmlc.mul' {{.*}} 'comm.all_reduce' would start later
// CHECK-DAG: remark: fuse: 'dmlc.add' is not fused with 'dmlc.exp' {{.*}} the first op would wait for a collective that only the second needs
// CHECK-LABEL: func.func @main
// CHECK: dmlc.mul
// CHECK: dmlc.exp
// CHECK: comm.all_reduce
// CHECK: kernel.fused
// CHECK: dmlc.add
// CHECK-NEXT: dmlc.neg
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @main(%x: tensor<8x16xf32>, %b: tensor<16xf32>) -> tensor<8x16xf32> {
    %p = dmlc.mul %x, %x : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %e = dmlc.exp %p : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %r = comm.all_reduce %p {axes = ["model"], combiner = "sum"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %s = dmlc.add %r, %e : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %y = dmlc.neg %s : (tensor<8x16xf32>) -> tensor<8x16xf32>
    func.return %y : tensor<8x16xf32>
  }
}

// -----

// Groups in the text are made as they are, whatever a search would have done.
// CHECK-LABEL: func.func @given
// FEW-LABEL: func.func @given
// CHECK: kernel.fused %x
// CHECK-NEXT: ^
// CHECK-NEXT: dmlc.exp
// CHECK-NEXT: dmlc.cos
// CHECK-NEXT: kernel.yield
// CHECK: dmlc.neg
func.func @given(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = dmlc.exp %x {dmlc.group = 4 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %b = dmlc.cos %a {dmlc.group = 4 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %c = dmlc.neg %b : (tensor<8xf32>) -> tensor<8xf32>
  func.return %c : tensor<8xf32>
}
