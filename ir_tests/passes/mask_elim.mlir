// RUN: dmlc opt %s --split-input-file --passes partition,mask-elim,dce | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes partition,mask-elim,dce --check

// 10 columns over 4 ranks. Weights and bias are zero in their padding (the loader sees to it: they are marked), so are their products, a sum of
// two zeros, and gelu of zero: the second product needs no mask.
// CHECK-LABEL: func.func @pair
// CHECK-SAME: %w1: tensor<6x3xf32> {{{[^%]*}}dmlc.pad = 0 : i64}
// CHECK-SAME: %b1: tensor<3xf32> {{{[^%]*}}dmlc.pad = 0 : i64}
// CHECK-SAME: %w2: tensor<3x6xf32> {{{[^%]*}}dmlc.pad = 0 : i64}
// CHECK-NOT: dmlc.mask_pad
// CHECK-NOT: dmlc.window
// CHECK: return
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @pair(%x: tensor<8x6xf32>, %w1: tensor<6x10xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{}, {"model"}]>}, %b1: tensor<10xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}]>}, %w2: tensor<10x6xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>}) -> tensor<8x6xf32> {
    %a = dmlc.matmul %x, %w1 {dmlc.place = {j = ["model"]}} : (tensor<8x6xf32>, tensor<6x10xf32>) -> tensor<8x10xf32>
    %c = dmlc.add %a, %b1 {dmlc.place = {e0 = ["model"]}} : (tensor<8x10xf32>, tensor<10xf32>) -> tensor<8x10xf32>
    %h = dmlc.gelu %c {dmlc.place = {e0 = ["model"]}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %d = dmlc.matmul %h, %w2 {dmlc.place = {k = ["model"]}} : (tensor<8x10xf32>, tensor<10x6xf32>) -> tensor<8x6xf32>
    func.return %d : tensor<8x6xf32>
  }
}

// -----

// exp of zero is one, and so is sigmoid's half: their sums need the mask. In a product the other side, a weight, is zero in its padding: one is finite, so neither needs a mask.
// CHECK-LABEL: func.func @not_zero
// CHECK: %[[E:.*]] = dmlc.exp %x
// CHECK-NOT: dmlc.mask_pad
// CHECK: dmlc.matmul %[[E]], %w
// CHECK: %[[S:.*]] = dmlc.sigmoid %x
// CHECK-NEXT: %[[T:.*]] = dmlc.mask_pad %[[S]]
// CHECK-NEXT: dmlc.reduce_sum %[[T]]
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @not_zero(%x: tensor<8x10xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{}, {"model"}]>}, %w: tensor<10x6xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>}) -> (tensor<8x6xf32>, tensor<8xf32>) {
    %e = dmlc.exp %x {dmlc.place = {e0 = ["model"]}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %d = dmlc.matmul %e, %w {dmlc.place = {k = ["model"]}} : (tensor<8x10xf32>, tensor<10x6xf32>) -> tensor<8x6xf32>
    %s = dmlc.sigmoid %x {dmlc.place = {e0 = ["model"]}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %r = dmlc.reduce_sum %s {dims = array<i64: 1>, dmlc.place = {d1 = ["model"]}} : (tensor<8x10xf32>) -> tensor<8xf32>
    func.return %d, %r : tensor<8x6xf32>, tensor<8xf32>
  }
}

// -----

// Zero is the identity of a sum, not of a maximum; zero times minus infinity (log of zero) is NaN; zero over zero is NaN.
// CHECK-LABEL: func.func @zero_is_not_enough
// CHECK: dmlc.mask_pad %x, %{{.*}} {dim = 0 : i64, identity = "max"
// CHECK: %[[P:.*]] = dmlc.mul %x, %{{.*}}
// CHECK-NEXT: dmlc.mask_pad %[[P]]
// CHECK: %[[Q:.*]] = dmlc.div %x, %x
// CHECK-NEXT: dmlc.mask_pad %[[Q]]
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @zero_is_not_enough(%x: tensor<10xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}]>}) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
    %m = dmlc.reduce_max %x {dims = array<i64: 0>, dmlc.place = {d0 = ["model"]}} : (tensor<10xf32>) -> tensor<f32>
    %l = dmlc.log %x {dmlc.place = {e0 = ["model"]}} : (tensor<10xf32>) -> tensor<10xf32>
    %p = dmlc.mul %x, %l {dmlc.place = {e0 = ["model"]}} : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
    %ps = dmlc.reduce_sum %p {dims = array<i64: 0>, dmlc.place = {d0 = ["model"]}} : (tensor<10xf32>) -> tensor<f32>
    %q = dmlc.div %x, %x {dmlc.place = {e0 = ["model"]}} : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
    %qs = dmlc.reduce_sum %q {dims = array<i64: 0>, dmlc.place = {d0 = ["model"]}} : (tensor<10xf32>) -> tensor<f32>
    func.return %m, %ps, %qs : tensor<f32>, tensor<f32>, tensor<f32>
  }
}

// -----

// Masks of indices: ids from outside are padded with zeros, which is what the mask writes. Ids that a rank counts up itself run past the table.
// CHECK-LABEL: func.func @indices
// CHECK-SAME: %ids: tensor<3xi64> {{{[^%]*}}dmlc.pad = 0 : i64}
// CHECK: dmlc.embedding %table, %ids
// CHECK: %[[I:.*]] = dmlc.iota
// CHECK-NEXT: %[[M:.*]] = dmlc.mask_pad %[[I]]
// CHECK-NEXT: dmlc.embedding %table, %[[M]]
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @indices(%ids: tensor<10xi64> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}]>}, %table: tensor<10x2xf32> {dmlc.role = "param"}) -> (tensor<10x2xf32>, tensor<10x2xf32>) {
    %e = dmlc.embedding %table, %ids {dmlc.place = {e0 = ["model"]}} : (tensor<10x2xf32>, tensor<10xi64>) -> tensor<10x2xf32>
    %i = dmlc.iota {dim = 0 : i64, dmlc.place = {e0 = ["model"]}} : () -> tensor<10xi64>
    %f = dmlc.embedding %table, %i {dmlc.place = {e0 = ["model"]}} : (tensor<10x2xf32>, tensor<10xi64>) -> tensor<10x2xf32>
    func.return %e, %f : tensor<10x2xf32>, tensor<10x2xf32>
  }
}

// -----

// Integers that no float holds: the padding of the difference is one, not zero, so its sum needs the mask.
// CHECK-LABEL: func.func @large_integers
// CHECK: %[[D:.*]] = dmlc.sub
// CHECK: %[[T:.*]] = dmlc.mask_pad %[[D]]
// CHECK-NEXT: dmlc.reduce_sum %[[T]]
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @large_integers(%x: tensor<10xi64> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}]>, dmlc.range = array<i64: 0, 9>}) -> tensor<i64> {
    %a = dmlc.full {value = 9007199254740993 : i64} : () -> tensor<i64>
    %b = dmlc.full {value = 9007199254740992 : i64} : () -> tensor<i64>
    %y = dmlc.add %x, %a {dmlc.place = {e0 = ["model"]}} : (tensor<10xi64>, tensor<i64>) -> tensor<10xi64>
    %d = dmlc.sub %y, %b {dmlc.place = {e0 = ["model"]}} : (tensor<10xi64>, tensor<i64>) -> tensor<10xi64>
    %s = dmlc.reduce_sum %d {dims = array<i64: 0>, dmlc.place = {d0 = ["model"]}} : (tensor<10xi64>) -> tensor<i64>
    func.return %s : tensor<i64>
  }
}
