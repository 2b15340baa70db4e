// RUN: dmlc opt %s --split-input-file --passes partition | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes partition --check
// RUN: dmlc opt %s --split-input-file --passes partition --remarks | filecheck %s --check-prefix=REMARK
// RUN: not dmlc opt %s --split-input-file --passes partition,partition 2>&1 | filecheck %s --check-prefix=TWICE

// The pair of matrices of a transformer's MLP: columns, then rows; one reduction, then the replicated bias, once. 10 columns over 4 ranks are
// 3, 3, 3, 1: the second product would sum over padding, so both its operands are masked.
// CHECK-LABEL: func.func @pair
// CHECK-SAME: %w1: tensor<6x3xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{}, {"model"}]>, dmlc.global = array<i64: 6, 10>}
// CHECK-SAME: %w2: tensor<3x6xf32>
// CHECK-NEXT: %[[A:.*]] = dmlc.matmul %x, %w1 : (tensor<8x6xf32>, tensor<6x3xf32>) -> tensor<8x3xf32>
// CHECK-NEXT: %[[C:.*]] = dmlc.add %[[A]], %b1
// CHECK-NEXT: %[[H:.*]] = dmlc.gelu %[[C]]
// CHECK: %[[N:.*]] = dmlc.full {value = 10 : i64
// CHECK-NEXT: %[[I:.*]] = comm.axis_index {axis = "model"
// CHECK-NEXT: %{{.*}}, %[[VALID:.*]] = dmlc.window %[[N]], %[[I]] {counts = array<i64: 4>, grain = 1 : i64
// CHECK-NEXT: %[[HM:.*]] = dmlc.mask_pad %[[H]], %[[VALID]] {dim = 1 : i64, identity = "sum"
// CHECK-NEXT: %[[WM:.*]] = dmlc.mask_pad %w2, %[[VALID]] {dim = 0 : i64, identity = "sum"
// CHECK-NEXT: %[[D:.*]] = dmlc.matmul %[[HM]], %[[WM]]
// CHECK-NEXT: %[[R:.*]] = comm.all_reduce %[[D]] {axes = ["model"], combiner = "sum", dmlc.id = "3.ar"}
// CHECK-NEXT: dmlc.add %[[R]], %b2
// TWICE: error: pass 'partition' needs 'global' (the program is still the global one, without communication), but there is 'comm.all_reduce'
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @pair(%x: tensor<8x6xf32>, %w1: tensor<6x10xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{}, {"model"}]>}, %b1: tensor<10xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}]>}, %w2: tensor<10x6xf32> {dmlc.role = "param", dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>}, %b2: tensor<6xf32> {dmlc.role = "param"}) -> tensor<8x6xf32> {
    %a = dmlc.matmul %x, %w1 {dmlc.place = {j = ["model"]}} : (tensor<8x6xf32>, tensor<6x10xf32>) -> tensor<8x10xf32>
    %c = dmlc.add %a, %b1 {dmlc.place = {e0 = ["model"]}} : (tensor<8x10xf32>, tensor<10xf32>) -> tensor<8x10xf32>
    %h = dmlc.gelu %c {dmlc.place = {e0 = ["model"]}} : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %d = dmlc.matmul %h, %w2 {dmlc.place = {k = ["model"]}} : (tensor<8x10xf32>, tensor<10x6xf32>) -> tensor<8x6xf32>
    %y = dmlc.add %d, %b2 : (tensor<8x6xf32>, tensor<6xf32>) -> tensor<8x6xf32>
    func.return %y : tensor<8x6xf32>
  }
}

// -----

// A partial sum stays one through linear ops, and through a sum with another partial sum. relu is not linear: it takes the completed value, and so does
// the product of two partial sums. A value is completed once for all who ask.
// CHECK-LABEL: func.func @partial_sums
// CHECK-NEXT: %[[A:.*]] = dmlc.matmul %x, %w
// CHECK-NEXT: %[[B:.*]] = dmlc.matmul %x, %v
// CHECK-NEXT: %[[N:.*]] = dmlc.neg %[[A]]
// CHECK-NEXT: %[[S:.*]] = dmlc.add %[[N]], %[[B]]
// CHECK-NEXT: %[[AR:.*]] = comm.all_reduce %[[A]]
// CHECK-NEXT: dmlc.relu %[[AR]]
// CHECK-NEXT: %[[SR:.*]] = comm.all_reduce %[[S]]
// CHECK-NEXT: dmlc.mul %[[AR]], %[[SR]]
// CHECK-NOT: comm.all_reduce
// CHECK: return
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @partial_sums(%x: tensor<2x4xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{}, {"model"}]>}, %w: tensor<4x3xf32> {dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>, dmlc.role = "param"}, %v: tensor<4x3xf32> {dmlc.storage = #dmlc.sharding<@mesh, [{"model"}, {}]>, dmlc.role = "param"}) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
    %a = dmlc.matmul %x, %w {dmlc.place = {k = ["model"]}} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %b = dmlc.matmul %x, %v {dmlc.place = {k = ["model"]}} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %n = dmlc.neg %a {dmlc.place = {linear = {model = 0 : i64}}} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %s = dmlc.add %n, %b {dmlc.place = {linear = {model = 0 : i64}}} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %r = dmlc.relu %a : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %m = dmlc.mul %a, %s : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    func.return %r, %m : tensor<2x3xf32>, tensor<2x3xf32>
  }
}

// -----

// A view across a sharded dim: [12, 8] by columns over 4 as [16, 6] is no view of the parts. It is gathered first.
// CHECK-LABEL: func.func @view_across
// CHECK: %[[G:.*]] = comm.all_gather %{{.*}} {axes = ["model"], dims = array<i64: 1>, sizes = array<i64: 8>, grains = array<i64: 1>
// CHECK-NEXT: dmlc.reshape %[[G]] {{.*}} : (tensor<12x8xf32>) -> tensor<16x6xf32>
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @view_across(%x: tensor<12x8xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{}, {"model"}]>}) -> tensor<16x6xf32> {
    %a = dmlc.exp %x {dmlc.place = {e0 = ["model"]}} : (tensor<12x8xf32>) -> tensor<12x8xf32>
    %y = dmlc.reshape %a : (tensor<12x8xf32>) -> tensor<16x6xf32>
    func.return %y : tensor<16x6xf32>
  }
}

// -----

// [6, 256] by rows over 4 (2, 2, 2, 0) as [1536]: no traffic, the flat parts are runs of 256, and rank 3 holds an empty one.
// CHECK-LABEL: func.func @view_along
// CHECK-SAME: -> (tensor<512xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}], grains=[256]>, dmlc.global = array<i64: 1536>})
// CHECK-NOT: comm
// CHECK: dmlc.reshape %{{.*}} : (tensor<2x256xf32>) -> tensor<512xf32>
// CHECK-NOT: comm
// CHECK: return
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @view_along(%x: tensor<6x256xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}, {}]>}) -> tensor<1536xf32> {
    %a = dmlc.exp %x {dmlc.place = {e1 = ["model"]}} : (tensor<6x256xf32>) -> tensor<6x256xf32>
    %y = dmlc.reshape %a {dmlc.place = {f0 = ["model"]}} : (tensor<6x256xf32>) -> tensor<1536xf32>
    func.return %y : tensor<1536xf32>
  }
}

// -----

// Rows to columns: the axis moves from one dim to the other. A result asked for in another sharding than it has is brought there.
// CHECK-LABEL: func.func @transposed_use
// CHECK: comm.all_to_all %{{.*}} {axes = ["model"], split_dims = array<i64: 1>, split_sizes = array<i64: 8>, split_grains = array<i64: 1>, dims = array<i64: 0>, sizes = array<i64: 5>, grains = array<i64: 1>
// CHECK: %[[S:.*]] = dmlc.cumsum
// CHECK-NEXT: comm.all_to_all %[[S]] {axes = ["model"], split_dims = array<i64: 0>
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=4]>} : () -> ()
  func.func @transposed_use(%x: tensor<5x8xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}, {}]>}) -> (tensor<5x8xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"model"}, {}]>}) {
    %a = dmlc.softmax %x {dim = 1 : i64, dmlc.place = {d0 = ["model"]}} : (tensor<5x8xf32>) -> tensor<5x8xf32>
    %y = dmlc.cumsum %a {dim = 0 : i64, dmlc.place = {d1 = ["model"]}} : (tensor<5x8xf32>) -> tensor<5x8xf32>
    func.return %y : tensor<5x8xf32>
  }
}

// -----

// Sources are made in parts: iota starts where the rank's part does. Reductions mask with the identity of what they do; positions are looked up with
// masked indices, and a maximum over padding is minus infinity.
// CHECK-LABEL: func.func @sources
// CHECK: %[[START:.*]], %[[VALID:.*]] = dmlc.window
// CHECK: dmlc.iota %[[START]] {dim = 0 : i64{{.*}} -> tensor<3xi64>
// CHECK: %[[IDS:.*]] = dmlc.mask_pad %{{.*}}, %[[VALID]] {dim = 0 : i64, identity = 0 : i64
// CHECK-NEXT: dmlc.embedding %table, %[[IDS]]
// CHECK: dmlc.mask_pad %{{.*}}, %[[VALID]] {dim = 0 : i64, identity = "max"
// CHECK: comm.all_reduce %{{.*}} {axes = ["model"], combiner = "max"
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=3]>} : () -> ()
  func.func @sources(%table: tensor<9x2xf32> {dmlc.role = "param"}) -> tensor<2xf32> {
    %i = dmlc.iota {dim = 0 : i64, dmlc.place = {e0 = ["model"]}} : () -> tensor<7xi64>
    %e = dmlc.embedding %table, %i {dmlc.place = {e0 = ["model"]}} : (tensor<9x2xf32>, tensor<7xi64>) -> tensor<7x2xf32>
    %m = dmlc.reduce_max %e {dims = array<i64: 0>, dmlc.place = {d0 = ["model"]}} : (tensor<7x2xf32>) -> tensor<2xf32>
    func.return %m : tensor<2xf32>
  }
}

// -----

// An explicit reshard, and two axes on one dim, gathered in one.
// CHECK-LABEL: func.func @reshard
// CHECK: comm.all_gather %{{.*}} {axes = ["a", "b"], dims = array<i64: 0>, sizes = array<i64: 7>, grains = array<i64: 1>
// CHECK: dmlc.shard_slice %{{.*}} {dim = 1 : i64, size = 3 : i64
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["a"=2, "b"=3]>} : () -> ()
  func.func @reshard(%x: tensor<7x5xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"a", "b"}, {}]>}) -> tensor<7x5xf32> {
    %a = dmlc.exp %x {dmlc.place = {e1 = ["a", "b"]}} : (tensor<7x5xf32>) -> tensor<7x5xf32>
    %b = dmlc.reshard %a {to = #dmlc.sharding<@mesh, [{}, {}]>} : (tensor<7x5xf32>) -> tensor<7x5xf32>
    %c = dmlc.reshard %b {to = #dmlc.sharding<@mesh, [{}, {"a"}]>} : (tensor<7x5xf32>) -> tensor<7x5xf32>
    %y = dmlc.neg %c {dmlc.place = {e0 = ["a"]}} : (tensor<7x5xf32>) -> tensor<7x5xf32>
    func.return %y : tensor<7x5xf32>
  }
}

// -----

// Without a place an op runs whole on every rank, regions too.
// CHECK-LABEL: func.func @whole
// CHECK-NEXT: dmlc.exp %x
// CHECK-NEXT: dmlc.scan
// CHECK-NOT: comm
// CHECK: func.return
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
  func.func @whole(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %a = dmlc.exp %x : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %y = dmlc.scan %a {count = 2 : i64} {
    ^bb0(%i: tensor<i64>, %c: tensor<3x4xf32>):
      %s = dmlc.sin %c : (tensor<3x4xf32>) -> tensor<3x4xf32>
      dmlc.yield %s : (tensor<3x4xf32>) -> ()
    } : (tensor<3x4xf32>) -> tensor<3x4xf32>
    func.return %y : tensor<3x4xf32>
  }
}

// -----

// A program without a mesh is left alone.
// CHECK-LABEL: func.func @no_mesh
// CHECK-NEXT: return
// REMARK: remark: partition: declined: the module has no mesh
func.func @no_mesh(%x: tensor<3xf32>) -> tensor<3xf32> {
  func.return %x : tensor<3xf32>
}

// -----

// A loop and a branch whose ops let a dim through run on a rank's part of it; nothing is sent inside.
// CHECK-LABEL: func.func @parts
// CHECK: dmlc.scan %{{.*}}, %{{.*}} {count = 2 : i64, shared = 1 : i64} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<i64>, %{{.*}}: tensor<2x4xf32>, %{{.*}}: tensor<4xf32>):
// CHECK-NOT: comm
// CHECK: dmlc.cond %{{.*}}, %{{.*}} {
// CHECK-NEXT: ^{{.*}}(%{{.*}}: tensor<2x4xf32>):
// CHECK: } : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
// CHECK-NEXT: func.return
builtin.module {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @parts(%x: tensor<3x4xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<4xf32>) -> (tensor<3x4xf32> {dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}) {
    %y = dmlc.scan %x, %w {count = 2 : i64, shared = 1 : i64, dmlc.place = {d0 = ["data"]}} {
    ^bb0(%i: tensor<i64>, %c: tensor<3x4xf32>, %v: tensor<4xf32>):
      %one = dmlc.full {value = 1 : i64} : () -> tensor<i64>
      %second = dmlc.eq %i, %one : (tensor<i64>, tensor<i64>) -> tensor<i1>
      %m = dmlc.mul %c, %v : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
      %s = dmlc.cond %second, %m {
      ^bb1(%e: tensor<3x4xf32>):
        %t = dmlc.softmax %e {dim = 1 : i64} : (tensor<3x4xf32>) -> tensor<3x4xf32>
        dmlc.yield %t : (tensor<3x4xf32>) -> ()
      }, {
      ^bb2(%e: tensor<3x4xf32>):
        dmlc.yield %e : (tensor<3x4xf32>) -> ()
      } : (tensor<i1>, tensor<3x4xf32>) -> tensor<3x4xf32>
      dmlc.yield %s : (tensor<3x4xf32>) -> ()
    } : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>
    func.return %y : tensor<3x4xf32>
  }
}
