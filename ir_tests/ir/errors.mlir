// RUN: dmlc opt %s --split-input-file --expect-error | filecheck %s

// What the reader refuses, then what the verifier refuses: place, line, carets.
// CHECK: errors.mlir:7:21: error: %z is not defined before its use
// CHECK-NEXT: {{^}}  %y = dmlc.add %x, %z : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>{{$}}
func.func @undefined(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = dmlc.add %x, %z : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

// CHECK: errors.mlir:14:22: error: unknown element type 'float32'; did you mean 'f32'?
func.func @type(%x : tensor<8xfloat32>) {
  func.return
}

// -----

// CHECK: errors.mlir:22:8: error: unknown op 'dmlc.matmull'; did you mean 'dmlc.matmul'?
func.func @op(%x: tensor<8xf32>) -> tensor<8xf32> {
  %y = dmlc.matmull %x : (tensor<8xf32>) -> tensor<8xf32>
  func.return %y : tensor<8xf32>
}

// -----

// CHECK: errors.mlir:31:8: error: this future is never waited for
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
func.func @future(%x: tensor<8xf32>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  func.return
}
