// RUN: dmlc opt %s --split-input-file --passes plan-memory | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes plan-memory --check

// The exponential takes the product's buffer over; the view and the output have none; the last product may not reuse what it reads.
// CHECK-LABEL: func.func @reuse
// CHECK-SAME: dmlc.arena = 512
// CHECK: dmlc.matmul %x, %w {dmlc.offset = array<i64: 0>}
// CHECK-NEXT: dmlc.exp %{{.*}} {dmlc.offset = array<i64: 0>, dmlc.in_place = 0 : i64}
// CHECK-NEXT: dmlc.reshape %{{[^{]*}} :
// CHECK-NEXT: dmlc.matmul %{{.*}} {dmlc.offset = array<i64: 256>}
// CHECK-NEXT: dmlc.neg %{{[^{]*}} :
func.func @reuse(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = dmlc.matmul %x, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = dmlc.exp %a : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %v = dmlc.reshape %b : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %c = dmlc.matmul %v, %w : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %d = dmlc.neg %c : (tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %d : tensor<8x8xf32>
}

// -----

// What a start reads stays until its wait, and what it delivers is there from the start: nothing of the two is reused between them.
// CHECK-LABEL: func.func @flight
// CHECK-SAME: dmlc.arena = 1024
// CHECK: dmlc.matmul %x, %x {dmlc.offset = array<i64: [[A:.*]]>}
// CHECK-NEXT: comm.all_reduce_start %{{.*}} dmlc.offset = array<i64: [[R:.*]]>}
// CHECK-NEXT: dmlc.exp %{{.*}} {dmlc.offset = array<i64: [[E:[0-9]*]]>}
// CHECK-NEXT: dmlc.matmul
// CHECK-NEXT: comm.wait
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @flight(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %a = dmlc.matmul %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %f = comm.all_reduce_start %a {axes = ["data"], combiner = "sum"} : (tensor<8x8xf32>) -> !comm.future<tensor<8x8xf32>>
    %e = dmlc.exp %a : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %m = dmlc.matmul %e, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %r = comm.wait %f : (!comm.future<tensor<8x8xf32>>) -> tensor<8x8xf32>
    %y = dmlc.add %r, %m : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    func.return %y : tensor<8x8xf32>
  }
}

// -----

// A sum with its own transpose reads elsewhere what it would overwrite.
// CHECK-LABEL: func.func @transposed
// CHECK-NOT: dmlc.in_place
func.func @transposed(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = dmlc.exp %x : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = dmlc.transpose %a {perm = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = dmlc.add %a, %t : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = dmlc.matmul %s, %s : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  func.return %y : tensor<8x8xf32>
}
