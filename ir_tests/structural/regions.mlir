// RUN: dmlc opt %s --split-input-file | filecheck %s
// RUN: dmlc opt %s --split-input-file --generic | dmlc opt - --split-input-file | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes cse,dce | filecheck %s --check-prefix=CLEAN

// A branch that only one of the ranks takes, a loop with two carried values, a value kept until another is there.
// CHECK-LABEL: func.func @regions
// CHECK: %[[Y:.*]] = dmlc.cond %{{.*}} {
// CHECK-NEXT: %[[A:.*]] = dmlc.exp %x
// CHECK-NEXT: dmlc.yield %[[A]] : (tensor<3xf64>) -> ()
// CHECK-NEXT: }, {
// CHECK-NEXT: dmlc.yield %x : (tensor<3xf64>) -> ()
// CHECK-NEXT: } : (tensor<i1>) -> tensor<3xf64>
// CHECK: %[[S:.*]], %[[P:.*]] = dmlc.scan %{{.*}}, %[[Y]] {count = 3 : i64} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %{{.*}}: tensor<f64>, %{{.*}}: tensor<3xf64>):
// CHECK: %[[B:.*]] = dmlc.barrier %[[P]], %[[S]] : (tensor<3xf64>, tensor<f64>) -> tensor<3xf64>
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @regions(%x: tensor<3xf64> {dmlc.role = "input", dmlc.global = array<i64: 6>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}]>}) -> (tensor<f64> {dmlc.name = "sum"}, tensor<3xf64> {dmlc.name = "power", dmlc.global = array<i64: 6>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}]>}) {
    %r = comm.axis_index {axis = "data"} : () -> tensor<i64>
    %one = dmlc.full {value = 1 : i64} : () -> tensor<i64>
    %zero = dmlc.full {value = 0.0 : f64} : () -> tensor<f64>
    %p = dmlc.eq %r, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
    %y = dmlc.cond %p {
      %a = dmlc.exp %x : (tensor<3xf64>) -> tensor<3xf64>
      dmlc.yield %a : (tensor<3xf64>) -> ()
    }, {
      dmlc.yield %x : (tensor<3xf64>) -> ()
    } : (tensor<i1>) -> tensor<3xf64>
    %s, %q = dmlc.scan %zero, %y {count = 3 : i64} {
    ^bb0(%i: tensor<i64>, %total: tensor<f64>, %power: tensor<3xf64>):
      %n = dmlc.cast %i {to = "f64"} : (tensor<i64>) -> tensor<f64>
      %square = dmlc.mul %power, %power : (tensor<3xf64>, tensor<3xf64>) -> tensor<3xf64>
      %local = dmlc.reduce_sum %square {dims = array<i64: 0>} : (tensor<3xf64>) -> tensor<f64>
      %all = comm.all_reduce %local {axes = ["data"], combiner = "sum"} : (tensor<f64>) -> tensor<f64>
      %weighted = dmlc.mul %all, %n : (tensor<f64>, tensor<f64>) -> tensor<f64>
      %next = dmlc.add %total, %weighted : (tensor<f64>, tensor<f64>) -> tensor<f64>
      dmlc.yield %next, %square : (tensor<f64>, tensor<3xf64>) -> ()
    } : (tensor<f64>, tensor<3xf64>) -> (tensor<f64>, tensor<3xf64>)
    %b = dmlc.barrier %q, %s : (tensor<3xf64>, tensor<f64>) -> tensor<3xf64>
    func.return %s, %b : tensor<f64>, tensor<3xf64>
  }
}

// -----

// Equal barriers are one; another trigger makes another. cse does not see that all three are %x, and what they order stays.
// CHECK-LABEL: func.func @barriers
// CHECK-COUNT-3: dmlc.barrier
// CLEAN-LABEL: func.func @barriers
// CLEAN-NEXT: %[[U:.*]] = dmlc.neg %t
// CLEAN-NEXT: %[[A:.*]] = dmlc.barrier %x, %t
// CLEAN-NEXT: %[[B:.*]] = dmlc.barrier %x, %[[U]]
// CLEAN-NEXT: dmlc.add %[[A]], %[[A]]
// CLEAN-NEXT: dmlc.add %{{.*}}, %[[B]]
func.func @barriers(%x: tensor<3xf64>, %t: tensor<f64>) -> tensor<3xf64> {
  %u = dmlc.neg %t : (tensor<f64>) -> tensor<f64>
  %a = dmlc.barrier %x, %t : (tensor<3xf64>, tensor<f64>) -> tensor<3xf64>
  %a2 = dmlc.barrier %x, %t : (tensor<3xf64>, tensor<f64>) -> tensor<3xf64>
  %b = dmlc.barrier %x, %u : (tensor<3xf64>, tensor<f64>) -> tensor<3xf64>
  %c = dmlc.add %a, %a2 : (tensor<3xf64>, tensor<3xf64>) -> tensor<3xf64>
  %d = dmlc.add %c, %b : (tensor<3xf64>, tensor<3xf64>) -> tensor<3xf64>
  func.return %d : tensor<3xf64>
}
