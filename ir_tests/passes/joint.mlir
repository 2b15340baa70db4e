// RUN: dmlc opt %s --split-input-file --passes joint --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes 'joint,fuse{given},tensor-fusion{given},tensor-partition{given},schedule{given}' | filecheck %s --check-prefix=DONE
// RUN: dmlc opt %s --split-input-file --passes 'joint,fuse{given},tensor-fusion{given},tensor-partition{given},schedule{given}' --check

// Two gradients that are ready early are one bucket and go out beside the products that are left; the pointwise ops are one kernel. What is in the text is
// the decision: numbers of sets, and the order.
// CHECK: remark: joint: {{.*}} us with {{[0-9]+}} trials; by itself: none
// CHECK-LABEL: func.func @main
// CHECK-DAG: comm.all_reduce %ga {{.*}}dmlc.bucket = 0
// CHECK-DAG: comm.all_reduce %gb {{.*}}dmlc.bucket = 0
// CHECK-DAG: dmlc.exp {{.*}}dmlc.group = [[G:[0-9]+]]
// CHECK-DAG: dmlc.tanh {{.*}}dmlc.group = [[G]]
// DONE-LABEL: func.func @main
// DONE: %[[F:.*]] = comm.all_reduce_start %ga, %gb
// DONE: dmlc.matmul
// DONE-NOT: comm.all_reduce
// DONE: comm.wait %[[F]]
// DONE: func.return
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=4]>} : () -> ()
  func.func @main(%x: tensor<2048x1024xf32>, %w: tensor<1024x1024xf32>, %ga: tensor<64x1024xf32>, %gb: tensor<64x1024xf32>) -> (tensor<64x1024xf32>, tensor<64x1024xf32>, tensor<2048x1024xf32>) {
    %ra = comm.all_reduce %ga {axes = ["data"], combiner = "sum"} : (tensor<64x1024xf32>) -> tensor<64x1024xf32>
    %rb = comm.all_reduce %gb {axes = ["data"], combiner = "sum"} : (tensor<64x1024xf32>) -> tensor<64x1024xf32>
    %y = dmlc.matmul %x, %w : (tensor<2048x1024xf32>, tensor<1024x1024xf32>) -> tensor<2048x1024xf32>
    %e = dmlc.exp %y : (tensor<2048x1024xf32>) -> tensor<2048x1024xf32>
    %t = dmlc.tanh %e : (tensor<2048x1024xf32>) -> tensor<2048x1024xf32>
    %z = dmlc.matmul %t, %w : (tensor<2048x1024xf32>, tensor<1024x1024xf32>) -> tensor<2048x1024xf32>
    func.return %ra, %rb, %z : tensor<64x1024xf32>, tensor<64x1024xf32>, tensor<2048x1024xf32>
  }
}

// -----

// Nothing to decide: one collective between two ops that need each other stays where it is, alone.
// CHECK-LABEL: func.func @chain
// CHECK-NOT: dmlc.bucket
// CHECK-NOT: dmlc.group
// DONE-LABEL: func.func @chain
// DONE-NOT: _start
// DONE-NOT: kernel.fused
// DONE: func.return
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @chain(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %a = dmlc.relu %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %r = comm.all_reduce %a {axes = ["model"], combiner = "sum"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %s = dmlc.exp %r : (tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %s : tensor<8x8xf32>
  }
}

// -----

// What the text has decided is carried out first and stays: the two collectives are one although they are far apart.
// CHECK-LABEL: func.func @given
// CHECK: comm.all_reduce %x, %{{.*}} {axes = ["data"]
// DONE-LABEL: func.func @given
// DONE: comm.all_reduce{{.*}} %x, %
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @given(%x: tensor<512x512xf32>) -> (tensor<512x512xf32>, tensor<512x512xf32>) {
    %a = comm.all_reduce %x {axes = ["data"], combiner = "sum", dmlc.bucket = 0 : i64} : (tensor<512x512xf32>) -> tensor<512x512xf32>
    %m = dmlc.matmul %x, %x : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
    %b = comm.all_reduce %m {axes = ["data"], combiner = "sum", dmlc.bucket = 0 : i64} : (tensor<512x512xf32>) -> tensor<512x512xf32>
    func.return %a, %b : tensor<512x512xf32>, tensor<512x512xf32>
  }
}
