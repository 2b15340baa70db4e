// RUN: dmlc opt %s --split-input-file --passes schedule --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes schedule,schedule | filecheck %s --check-prefix=TWICE
// RUN: dmlc opt %s --split-input-file --passes schedule --check

// The second product needs nothing of the reduction: it runs while the reduction does, and the wait stands before its first reader.
// CHECK: schedule: 446.7 us -> 383.4 us, of which communication exposed 63.2 us -> 0.0 us; no order beats 377.4 us (computation 377.4 us, communication 63.2 us, critical path 257.4 us, host {{.*}} us): gap 18.3% -> 1.6%
// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = dmlc.matmul %x, %w
// CHECK-NEXT: %[[F:.*]] = comm.all_reduce_start %[[A]] {axes = ["model"], combiner = "sum"}
// CHECK-NEXT: dmlc.matmul %x, %v
// CHECK-NEXT: %sum = comm.wait %[[F]]
// CHECK-NEXT: dmlc.exp %sum
// TWICE-LABEL: func.func @main
// TWICE-COUNT-1: comm.all_reduce_start
// TWICE-COUNT-1: comm.wait
// TWICE-NOT: comm.wait
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @main(%x: tensor<4096x1024xf32>, %w: tensor<1024x1024xf32>, %v: tensor<1024x1024xf32>) -> (tensor<4096x1024xf32>, tensor<4096x1024xf32>) {
    %a = dmlc.matmul %x, %w : (tensor<4096x1024xf32>, tensor<1024x1024xf32>) -> tensor<4096x1024xf32>
    %r = comm.all_reduce %a {axes = ["model"], combiner = "sum", dmlc.name = "sum"} : (tensor<4096x1024xf32>) -> tensor<4096x1024xf32>
    %s = dmlc.exp %r : (tensor<4096x1024xf32>) -> tensor<4096x1024xf32>
    %b = dmlc.matmul %x, %v : (tensor<4096x1024xf32>, tensor<1024x1024xf32>) -> tensor<4096x1024xf32>
    func.return %s, %b : tensor<4096x1024xf32>, tensor<4096x1024xf32>
  }
}

// -----

// Nothing to do meanwhile: the collective stays synchronous.
// CHECK-LABEL: func.func @chain
// CHECK-NOT: _start
// CHECK: comm.all_reduce %{{.*}} {axes = ["model"], combiner = "sum"}
// CHECK-NEXT: dmlc.exp
// TWICE-LABEL: func.func @chain
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

// A loop's body is a region of its own; a value that only the result needs is waited for at the body's end.
// CHECK-LABEL: func.func @loop
// CHECK: dmlc.microbatch
// CHECK: comm.all_reduce_start
// CHECK: dmlc.matmul
// CHECK: comm.wait
// CHECK-NEXT: dmlc.yield
// TWICE-LABEL: func.func @loop
builtin.module attributes {dmlc.spmd, dmlc.cluster = "h100"} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @loop(%x: tensor<512x512xf32>, %w: tensor<512x512xf32>) -> (tensor<512x512xf32>, tensor<512x512xf32>) {
    %g, %h = dmlc.microbatch {count = 2 : i64} {
    ^bb0(%i: tensor<i64>):
      %a = dmlc.matmul %x, %w : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
      %r = comm.all_reduce %a {axes = ["data"], combiner = "sum"} : (tensor<512x512xf32>) -> tensor<512x512xf32>
      %b = dmlc.matmul %w, %x : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
      dmlc.yield %r, %b : (tensor<512x512xf32>, tensor<512x512xf32>) -> ()
    } : () -> (tensor<512x512xf32>, tensor<512x512xf32>)
    func.return %g, %h : tensor<512x512xf32>, tensor<512x512xf32>
  }
}
