// RUN: dmlc opt %s --split-input-file --passes fuse,outline-kernels | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes fuse,outline-kernels --check

// Equal regions of two layers share a function, whose name comes from its ops and whose arguments are called as in the model.
// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = kernel.call %{{.*}}, %b {kernel = "fused_add_gelu_0"
// CHECK: kernel.call %{{.*}}, %c {kernel = "fused_add_gelu_0"
// CHECK-NOT: kernel.fused
// CHECK: func.func private @fused_add_gelu_0(%matmul: tensor<8x8xf32>, %bias: tensor<8xf32>) -> tensor<8x8xf32> {
// CHECK-NEXT: dmlc.add %matmul, %bias
// CHECK-NEXT: dmlc.gelu
// CHECK-NEXT: func.return
// CHECK-NOT: func.func
func.func @main(%x: tensor<8x8xf32>, %b: tensor<8xf32> {dmlc.role = "param", dmlc.names = ["layer.0.bias"]}, %c: tensor<8xf32> {dmlc.role = "param", dmlc.names = ["layer.1.bias"]}) -> tensor<8x8xf32> {
  %m = dmlc.matmul %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = dmlc.add %m, %b : (tensor<8x8xf32>, tensor<8xf32>) -> tensor<8x8xf32>
  %g = dmlc.gelu %s : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %n = dmlc.matmul %g, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = dmlc.add %n, %c : (tensor<8x8xf32>, tensor<8xf32>) -> tensor<8x8xf32>
  %h = dmlc.gelu %t : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %h : tensor<8x8xf32>
}

// -----

// Another attribute is another kernel.
// CHECK-LABEL: func.func @main
// CHECK: kernel.call %{{.*}} {kernel = "fused_gelu_exp_0"
// CHECK: kernel.call %{{.*}} {kernel = "fused_gelu_exp_1"
// CHECK: func.func private @fused_gelu_exp_0
// CHECK: func.func private @fused_gelu_exp_1
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %g = dmlc.gelu %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %a = dmlc.exp %g : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %n = dmlc.matmul %a, %a : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %h = dmlc.gelu %n {approximate = "tanh"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = dmlc.exp %h : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %b : tensor<8x8xf32>
}

// -----

// Nothing fused, nothing outlined.
// CHECK-LABEL: func.func @main
// CHECK-NOT: kernel
// CHECK-NOT: func.func
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %n = dmlc.matmul %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %n : tensor<8x8xf32>
}
