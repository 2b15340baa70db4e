// RUN: dmlc opt %s | filecheck %s
// RUN: dmlc opt %s --generic | filecheck %s --check-prefix GENERIC

// A sharded program with a symbolic batch, a future and a loop, in both forms.
// CHECK: dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "micro"=4:sequential]>} : () -> ()
// CHECK-NEXT: func.func @main(%x: tensor<?x8xf32, #dmlc.dims<["batch", 8]>> {dmlc.role = "input"}, %n: tensor<i64> {dmlc.role = "size"}) -> (tensor<?x8xf32, #dmlc.dims<["batch", 8]>> {dmlc.name = "y"}) {
// CHECK-NEXT: %future = comm.all_reduce_start %x {axes = ["data"], combiner = "sum", dmlc.name = "future"} : (tensor<?x8xf32, #dmlc.dims<["batch", 8]>>) -> !comm.future<tensor<?x8xf32, #dmlc.dims<["batch", 8]>>> loc("model.py":3:7)
// CHECK-NEXT: %total = dmlc.microbatch {count = 4 : i64, dmlc.name = "total"} {
// CHECK-NEXT: ^bb1(%arg0: tensor<i64>):
// CHECK-NEXT: %v7_re_0, %v7_re_1 = dmlc.window %n, %arg0 {counts = array<i64: 4>, grain = 1 : i64, dmlc.id = "7#re"}
// CHECK-NEXT: dmlc.yield %v7_re_1 : (tensor<i64>) -> ()
// CHECK-NEXT: } : () -> tensor<i64>
// CHECK-NEXT: %v3 = comm.wait %future :

// GENERIC: "func.func"() <{sym_name = "main", function_type = (tensor<?x8xf32, #dmlc.dims<["batch", 8]>>, tensor<i64>) -> tensor<?x8xf32, #dmlc.dims<["batch", 8]>>,
// GENERIC-NEXT: ^bb0(%x: tensor<?x8xf32, #dmlc.dims<["batch", 8]>>, %n: tensor<i64>):
// GENERIC-NEXT: %future = "comm.all_reduce_start"(%x) {axes = ["data"], combiner = "sum", dmlc.id = "0", dmlc.name = "future"}
// GENERIC-NEXT: %total = "dmlc.microbatch"() ({
// GENERIC-NEXT: ^bb1(%arg0: tensor<i64>):
// GENERIC: }) {count = 4 : i64, dmlc.id = "1", dmlc.name = "total"} : () -> tensor<i64>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "micro"=4:sequential]>} : () -> ()
func.func @main(%x: tensor<?x8xf32, #dmlc.dims<["batch", 8]>> {dmlc.role = "input"}, %n: tensor<i64> {dmlc.role = "size"}) -> (tensor<?x8xf32, #dmlc.dims<["batch", 8]>> {dmlc.name = "y"}) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum", dmlc.name = "future"} : (tensor<?x8xf32, #dmlc.dims<["batch", 8]>>) -> !comm.future<tensor<?x8xf32, #dmlc.dims<["batch", 8]>>> loc("model.py":3:7)
  %g = dmlc.microbatch {count = 4 : i64, dmlc.name = "total"} {
  ^bb0(%i: tensor<i64>):
    %start, %valid = dmlc.window %n, %i {counts = array<i64: 4>, grain = 1 : i64, dmlc.id = "7#re"} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
    dmlc.yield %valid : (tensor<i64>) -> ()
  } : () -> tensor<i64>
  %y = comm.wait %f : (!comm.future<tensor<?x8xf32, #dmlc.dims<["batch", 8]>>>) -> tensor<?x8xf32, #dmlc.dims<["batch", 8]>>
  func.return %y : tensor<?x8xf32, #dmlc.dims<["batch", 8]>>
}
