// RUN: dmlc opt %s --passes mask-elim,dce | filecheck %s
// RUN: dmlc opt %s --passes mask-elim,dce --check

// What a mask has made zero stays zero: a product with it, a scale by a constant, the square. Only the mask of the cosine is left: it is one where x is zero.
// CHECK-LABEL: func.func @after_a_mask
// CHECK: dmlc.cos
// CHECK-NEXT: dmlc.mask_pad
// CHECK-NOT: dmlc.mask_pad
// CHECK: return
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @after_a_mask(%x: tensor<3xf32> {dmlc.global = array<i64: 10>, dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}]>}) -> tensor<f32> {
    %n = dmlc.full {value = 10 : i64} : () -> tensor<i64>
    %two = dmlc.full {value = 2.0 : f64} : () -> tensor<f32>
    %i = comm.axis_index {axis = "model"} : () -> tensor<i64>
    %s, %k = dmlc.window %n, %i {counts = array<i64: 4>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
    %c = dmlc.cos %x : (tensor<3xf32>) -> tensor<3xf32>
    %m = dmlc.mask_pad %c, %k {dim = 0 : i64, identity = "sum"} : (tensor<3xf32>, tensor<i64>) -> tensor<3xf32>
    %again = dmlc.mask_pad %m, %k {dim = 0 : i64, identity = "sum"} : (tensor<3xf32>, tensor<i64>) -> tensor<3xf32>
    %scaled = dmlc.mul %again, %two : (tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
    %square = dmlc.mul %scaled, %m : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
    %last = dmlc.mask_pad %square, %k {dim = 0 : i64, identity = "sum"} : (tensor<3xf32>, tensor<i64>) -> tensor<3xf32>
    %r = dmlc.reduce_sum %last {dims = array<i64: 0>} : (tensor<3xf32>) -> tensor<f32>
    %y = comm.all_reduce %r {axes = ["model"], combiner = "sum"} : (tensor<f32>) -> tensor<f32>
    func.return %y : tensor<f32>
  }
}
