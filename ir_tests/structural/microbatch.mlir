// RUN: dmlc opt %s --split-input-file | filecheck %s
// RUN: dmlc opt %s --split-input-file --generic | dmlc opt - --split-input-file | filecheck %s

// One training step three ways. `ir_tests/test_structural.py` runs all of them and compares them: the whole batch on one rank, ...
// CHECK-LABEL: func.func @whole
builtin.module {
  func.func @whole(%x: tensor<7x6xf64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %t: tensor<7xi64> {dmlc.role = "input", dmlc.batch_dim = 0 : i64}, %n: tensor<i64> {dmlc.role = "size"}, %w: tensor<6x5xf64> {dmlc.role = "param"}, %m: tensor<6x5xf64> {dmlc.role = "state"}, %lr: tensor<f64> {dmlc.role = "hyper"}) -> (tensor<f64> {dmlc.name = "loss"}, tensor<6x5xf64> {dmlc.name = "w", dmlc.updates = "w"}, tensor<6x5xf64> {dmlc.name = "m", dmlc.updates = "m"}) {
    %ignored = dmlc.full {value = -100 : i64} : () -> tensor<i64>
    %classes = dmlc.iota {dim = 0 : i64} : () -> tensor<5xi64>
    %decay = dmlc.full {value = 0.9 : f64} : () -> tensor<f64>
    %counts = dmlc.ne %t, %ignored : (tensor<7xi64>, tensor<i64>) -> tensor<7xi1>
    %valid = dmlc.cast %counts {to = "f64"} : (tensor<7xi1>) -> tensor<7xf64>
    %count = dmlc.reduce_sum %valid {dims = array<i64: 0>} : (tensor<7xf64>) -> tensor<f64>
    %y = dmlc.matmul %x, %w : (tensor<7x6xf64>, tensor<6x5xf64>) -> tensor<7x5xf64>
    %l = dmlc.cross_entropy %y, %t : (tensor<7x5xf64>, tensor<7xi64>) -> tensor<7xf64>
    %sum = dmlc.reduce_sum %l {dims = array<i64: 0>} : (tensor<7xf64>) -> tensor<f64>
    %p = dmlc.softmax %y {dim = 1 : i64} : (tensor<7x5xf64>) -> tensor<7x5xf64>
    %tc = dmlc.reshape %t : (tensor<7xi64>) -> tensor<7x1xi64>
    %hit = dmlc.eq %tc, %classes : (tensor<7x1xi64>, tensor<5xi64>) -> tensor<7x5xi1>
    %one = dmlc.cast %hit {to = "f64"} : (tensor<7x5xi1>) -> tensor<7x5xf64>
    %d = dmlc.sub %p, %one : (tensor<7x5xf64>, tensor<7x5xf64>) -> tensor<7x5xf64>
    %vc = dmlc.reshape %valid : (tensor<7xf64>) -> tensor<7x1xf64>
    %dy = dmlc.mul %d, %vc : (tensor<7x5xf64>, tensor<7x1xf64>) -> tensor<7x5xf64>
    %dw = dmlc.contract %x, %dy {equation = "bk,bj->kj"} : (tensor<7x6xf64>, tensor<7x5xf64>) -> tensor<6x5xf64>
    %g = dmlc.div %dw, %count : (tensor<6x5xf64>, tensor<f64>) -> tensor<6x5xf64>
    %m0 = dmlc.mul %m, %decay : (tensor<6x5xf64>, tensor<f64>) -> tensor<6x5xf64>
    %m1 = dmlc.add %m0, %g : (tensor<6x5xf64>, tensor<6x5xf64>) -> tensor<6x5xf64>
    %step = dmlc.mul %m1, %lr : (tensor<6x5xf64>, tensor<f64>) -> tensor<6x5xf64>
    %w1 = dmlc.sub %w, %step : (tensor<6x5xf64>, tensor<6x5xf64>) -> tensor<6x5xf64>
    %loss = dmlc.div %sum, %count : (tensor<f64>, tensor<f64>) -> tensor<f64>
    func.return %loss, %w1, %m1 : tensor<f64>, tensor<6x5xf64>, tensor<6x5xf64>
  }
}

// -----

// ... 7 samples over data=2 and 2 microbatches, momentum and accumulated gradient split over the ranks, the last iteration peeled so that the update
// could run beside its reduction, and before it a loop of its own for the count of valid targets, which is needed complete;
// CHECK-LABEL: func.func @split
// CHECK: %[[R:.*]] = comm.axis_index {axis = "data"}
// CHECK: dmlc.microbatch {count = 2 : i64, acc = ["f64"]} {
// CHECK: ^{{.*}}(%[[I:.*]]: tensor<i64>):
// CHECK: %{{.*}}, %{{.*}} = dmlc.window %n, %[[R]], %[[I]] {counts = array<i64: 2, 2>, grain = 1 : i64}
// CHECK: dmlc.yield %{{.*}} : (tensor<f64>) -> ()
// CHECK: comm.all_reduce_start
// CHECK: dmlc.microbatch {count = 1 : i64, acc = ["f64", "f64"], storage =
// CHECK: comm.reduce_scatter_start
// CHECK: comm.wait
// CHECK: dmlc.yield
// CHECK: "fc#peel"
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "micro"=2:sequential]>} : () -> ()
  func.func @split(%x: tensor<4x6xf64> {dmlc.role = "input", dmlc.global = array<i64: 7, 6>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %t: tensor<4xi64> {dmlc.role = "input", dmlc.global = array<i64: 7>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}]>}, %n: tensor<i64> {dmlc.role = "size"}, %w: tensor<6x5xf64> {dmlc.role = "param"}, %m: tensor<3x5xf64> {dmlc.role = "state", dmlc.global = array<i64: 6, 5>, dmlc.storage = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %lr: tensor<f64> {dmlc.role = "hyper"}) -> (tensor<f64> {dmlc.name = "loss"}, tensor<6x5xf64> {dmlc.name = "w", dmlc.updates = "w"}, tensor<3x5xf64> {dmlc.name = "m", dmlc.updates = "m", dmlc.global = array<i64: 6, 5>, dmlc.storage = #dmlc.sharding<@mesh, [{"data"}, {}]>}) {
    %r = comm.axis_index {axis = "data"} : () -> tensor<i64>
    %ignored = dmlc.full {value = -100 : i64} : () -> tensor<i64>
    %classes = dmlc.iota {dim = 0 : i64} : () -> tensor<5xi64>
    %rows = dmlc.full {value = 4 : i64} : () -> tensor<i64>
    %c0 = dmlc.microbatch {count = 2 : i64, acc = ["f64"]} {
    ^bb0(%i: tensor<i64>):
      %s, %k = dmlc.window %n, %r, %i {counts = array<i64: 2, 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
      %at, %held = dmlc.window %rows, %i {counts = array<i64: 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
      %ti = dmlc.shard_slice %t, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4xi64>, tensor<i64>) -> tensor<2xi64>
      %tm = dmlc.mask_pad %ti, %k {dim = 0 : i64, identity = -100 : i64} : (tensor<2xi64>, tensor<i64>) -> tensor<2xi64>
      %counts = dmlc.ne %tm, %ignored : (tensor<2xi64>, tensor<i64>) -> tensor<2xi1>
      %valid = dmlc.cast %counts {to = "f64"} : (tensor<2xi1>) -> tensor<2xf64>
      %p = dmlc.reduce_sum %valid {dims = array<i64: 0>} : (tensor<2xf64>) -> tensor<f64>
      dmlc.yield %p : (tensor<f64>) -> ()
    } : () -> tensor<f64>
    %f0 = comm.all_reduce_start %c0 {axes = ["data"], combiner = "sum"} : (tensor<f64>) -> !comm.future<tensor<f64>>
    %g0, %l0 = dmlc.microbatch {count = 1 : i64, acc = ["f64", "f64"], storage = [#dmlc.sharding<@mesh, [{"data"}, {}]>, #dmlc.sharding<@mesh, []>]} {
    ^bb0(%i: tensor<i64>):
      %s, %k = dmlc.window %n, %r, %i {counts = array<i64: 2, 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
      %at, %held = dmlc.window %rows, %i {counts = array<i64: 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
      %xi = dmlc.shard_slice %x, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4x6xf64>, tensor<i64>) -> tensor<2x6xf64>
      %xm = dmlc.mask_pad %xi, %k {dim = 0 : i64, identity = "sum"} : (tensor<2x6xf64>, tensor<i64>) -> tensor<2x6xf64>
      %ti = dmlc.shard_slice %t, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4xi64>, tensor<i64>) -> tensor<2xi64>
      %tm = dmlc.mask_pad %ti, %k {dim = 0 : i64, identity = -100 : i64} : (tensor<2xi64>, tensor<i64>) -> tensor<2xi64>
      %y = dmlc.matmul %xm, %w {dmlc.id = "fc"} : (tensor<2x6xf64>, tensor<6x5xf64>) -> tensor<2x5xf64>
      %l = dmlc.cross_entropy %y, %tm : (tensor<2x5xf64>, tensor<2xi64>) -> tensor<2xf64>
      %sum = dmlc.reduce_sum %l {dims = array<i64: 0>} : (tensor<2xf64>) -> tensor<f64>
      %counts = dmlc.ne %tm, %ignored : (tensor<2xi64>, tensor<i64>) -> tensor<2xi1>
      %valid = dmlc.cast %counts {to = "f64"} : (tensor<2xi1>) -> tensor<2xf64>
      %p = dmlc.softmax %y {dim = 1 : i64, dmlc.of = "fc"} : (tensor<2x5xf64>) -> tensor<2x5xf64>
      %tc = dmlc.reshape %tm : (tensor<2xi64>) -> tensor<2x1xi64>
      %hit = dmlc.eq %tc, %classes : (tensor<2x1xi64>, tensor<5xi64>) -> tensor<2x5xi1>
      %one = dmlc.cast %hit {to = "f64"} : (tensor<2x5xi1>) -> tensor<2x5xf64>
      %d = dmlc.sub %p, %one : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
      %vc = dmlc.reshape %valid : (tensor<2xf64>) -> tensor<2x1xf64>
      %dy = dmlc.mul %d, %vc : (tensor<2x5xf64>, tensor<2x1xf64>) -> tensor<2x5xf64>
      %dw = dmlc.contract %xm, %dy {equation = "bk,bj->kj", dmlc.of = "fc"} : (tensor<2x6xf64>, tensor<2x5xf64>) -> tensor<6x5xf64>
      %gf = comm.reduce_scatter_start %dw {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 6>, grains = array<i64: 1>} : (tensor<6x5xf64>) -> !comm.future<tensor<3x5xf64>>
      %gw = comm.wait %gf : (!comm.future<tensor<3x5xf64>>) -> tensor<3x5xf64>
      dmlc.yield %gw, %sum : (tensor<3x5xf64>, tensor<f64>) -> ()
    } : () -> (tensor<3x5xf64>, tensor<f64>)
    %last = dmlc.full {value = 1 : i64} : () -> tensor<i64>
    %s, %k = dmlc.window %n, %r, %last {counts = array<i64: 2, 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
    %at, %held = dmlc.window %rows, %last {counts = array<i64: 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
    %xi = dmlc.shard_slice %x, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4x6xf64>, tensor<i64>) -> tensor<2x6xf64>
    %xm = dmlc.mask_pad %xi, %k {dim = 0 : i64, identity = "sum"} : (tensor<2x6xf64>, tensor<i64>) -> tensor<2x6xf64>
    %ti = dmlc.shard_slice %t, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4xi64>, tensor<i64>) -> tensor<2xi64>
    %tm = dmlc.mask_pad %ti, %k {dim = 0 : i64, identity = -100 : i64} : (tensor<2xi64>, tensor<i64>) -> tensor<2xi64>
    %y = dmlc.matmul %xm, %w {dmlc.id = "fc#peel"} : (tensor<2x6xf64>, tensor<6x5xf64>) -> tensor<2x5xf64>
    %l = dmlc.cross_entropy %y, %tm : (tensor<2x5xf64>, tensor<2xi64>) -> tensor<2xf64>
    %l1 = dmlc.reduce_sum %l {dims = array<i64: 0>} : (tensor<2xf64>) -> tensor<f64>
    %counts = dmlc.ne %tm, %ignored : (tensor<2xi64>, tensor<i64>) -> tensor<2xi1>
    %valid = dmlc.cast %counts {to = "f64"} : (tensor<2xi1>) -> tensor<2xf64>
    %p = dmlc.softmax %y {dim = 1 : i64, dmlc.of = "fc#peel"} : (tensor<2x5xf64>) -> tensor<2x5xf64>
    %tc = dmlc.reshape %tm : (tensor<2xi64>) -> tensor<2x1xi64>
    %hit = dmlc.eq %tc, %classes : (tensor<2x1xi64>, tensor<5xi64>) -> tensor<2x5xi1>
    %one = dmlc.cast %hit {to = "f64"} : (tensor<2x5xi1>) -> tensor<2x5xf64>
    %d = dmlc.sub %p, %one : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
    %vc = dmlc.reshape %valid : (tensor<2xf64>) -> tensor<2x1xf64>
    %dy = dmlc.mul %d, %vc : (tensor<2x5xf64>, tensor<2x1xf64>) -> tensor<2x5xf64>
    %dw = dmlc.contract %xm, %dy {equation = "bk,bj->kj", dmlc.of = "fc#peel"} : (tensor<2x6xf64>, tensor<2x5xf64>) -> tensor<6x5xf64>
    %f1 = comm.reduce_scatter_start %dw {axes = ["data"], combiner = "sum", dims = array<i64: 0>, sizes = array<i64: 6>, grains = array<i64: 1>} : (tensor<6x5xf64>) -> !comm.future<tensor<3x5xf64>>
    %decay = dmlc.full {value = 0.9 : f64} : () -> tensor<f64>
    %m0 = dmlc.mul %m, %decay {dmlc.phase = "update"} : (tensor<3x5xf64>, tensor<f64>) -> tensor<3x5xf64>
    %count = comm.wait %f0 : (!comm.future<tensor<f64>>) -> tensor<f64>
    %h = comm.wait %f1 : (!comm.future<tensor<3x5xf64>>) -> tensor<3x5xf64>
    %dws = dmlc.add %g0, %h : (tensor<3x5xf64>, tensor<3x5xf64>) -> tensor<3x5xf64>
    %g = dmlc.div %dws, %count : (tensor<3x5xf64>, tensor<f64>) -> tensor<3x5xf64>
    %m1 = dmlc.add %m0, %g {dmlc.phase = "update"} : (tensor<3x5xf64>, tensor<3x5xf64>) -> tensor<3x5xf64>
    %step = dmlc.mul %m1, %lr {dmlc.phase = "update"} : (tensor<3x5xf64>, tensor<f64>) -> tensor<3x5xf64>
    %six = dmlc.full {value = 6 : i64} : () -> tensor<i64>
    %first, %mine = dmlc.window %six, %r {counts = array<i64: 2>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
    %ws = dmlc.shard_slice %w, %first {dim = 0 : i64, size = 3 : i64} : (tensor<6x5xf64>, tensor<i64>) -> tensor<3x5xf64>
    %wn = dmlc.sub %ws, %step {dmlc.phase = "update"} : (tensor<3x5xf64>, tensor<3x5xf64>) -> tensor<3x5xf64>
    %f2 = comm.all_gather_start %wn {axes = ["data"], dims = array<i64: 0>, sizes = array<i64: 6>, grains = array<i64: 1>} : (tensor<3x5xf64>) -> !comm.future<tensor<6x5xf64>>
    %lsum = dmlc.add %l0, %l1 : (tensor<f64>, tensor<f64>) -> tensor<f64>
    %lall = comm.all_reduce %lsum {axes = ["data"], combiner = "sum"} : (tensor<f64>) -> tensor<f64>
    %loss = dmlc.div %lall, %count : (tensor<f64>, tensor<f64>) -> tensor<f64>
    %w1 = comm.wait %f2 : (!comm.future<tensor<6x5xf64>>) -> tensor<6x5xf64>
    func.return %loss, %w1, %m1 : tensor<f64>, tensor<6x5xf64>, tensor<3x5xf64>
  }
}

// -----

// ... and 7 over data=2 and 3 microbatches: the windows are (0,2)(2,2)(4,0) and (4,2)(6,1)(8,0), so one microbatch of each rank is all padding and its slice lies past the end.
// CHECK-LABEL: func.func @thirds
// CHECK: dmlc.microbatch {count = 3 : i64, acc = ["f64", "f64", "f64"]} {
// CHECK: comm.all_reduce %{{.*}}, %{{.*}}, %{{.*}} {axes = ["data"], combiner = "sum"}
builtin.module attributes {dmlc.spmd} {
  dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2]>} : () -> ()
  func.func @thirds(%x: tensor<4x6xf64> {dmlc.role = "input", dmlc.global = array<i64: 7, 6>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}, {}]>}, %t: tensor<4xi64> {dmlc.role = "input", dmlc.global = array<i64: 7>, dmlc.sharding = #dmlc.sharding<@mesh, [{"data"}]>}, %n: tensor<i64> {dmlc.role = "size"}, %w: tensor<6x5xf64> {dmlc.role = "param"}, %m: tensor<6x5xf64> {dmlc.role = "state"}, %lr: tensor<f64> {dmlc.role = "hyper"}) -> (tensor<f64> {dmlc.name = "loss"}, tensor<6x5xf64> {dmlc.name = "w", dmlc.updates = "w"}, tensor<6x5xf64> {dmlc.name = "m", dmlc.updates = "m"}) {
    %r = comm.axis_index {axis = "data"} : () -> tensor<i64>
    %ignored = dmlc.full {value = -100 : i64} : () -> tensor<i64>
    %classes = dmlc.iota {dim = 0 : i64} : () -> tensor<5xi64>
    %rows = dmlc.full {value = 4 : i64} : () -> tensor<i64>
    %a0, %a1, %a2 = dmlc.microbatch {count = 3 : i64, acc = ["f64", "f64", "f64"]} {
    ^bb0(%i: tensor<i64>):
      %s, %k = dmlc.window %n, %r, %i {counts = array<i64: 2, 3>, grain = 1 : i64} : (tensor<i64>, tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
      %at, %held = dmlc.window %rows, %i {counts = array<i64: 3>, grain = 1 : i64} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
      %xi = dmlc.shard_slice %x, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4x6xf64>, tensor<i64>) -> tensor<2x6xf64>
      %xm = dmlc.mask_pad %xi, %k {dim = 0 : i64, identity = "sum"} : (tensor<2x6xf64>, tensor<i64>) -> tensor<2x6xf64>
      %ti = dmlc.shard_slice %t, %at {dim = 0 : i64, size = 2 : i64} : (tensor<4xi64>, tensor<i64>) -> tensor<2xi64>
      %tm = dmlc.mask_pad %ti, %k {dim = 0 : i64, identity = -100 : i64} : (tensor<2xi64>, tensor<i64>) -> tensor<2xi64>
      %y = dmlc.matmul %xm, %w : (tensor<2x6xf64>, tensor<6x5xf64>) -> tensor<2x5xf64>
      %l = dmlc.cross_entropy %y, %tm : (tensor<2x5xf64>, tensor<2xi64>) -> tensor<2xf64>
      %sum = dmlc.reduce_sum %l {dims = array<i64: 0>} : (tensor<2xf64>) -> tensor<f64>
      %counts = dmlc.ne %tm, %ignored : (tensor<2xi64>, tensor<i64>) -> tensor<2xi1>
      %valid = dmlc.cast %counts {to = "f64"} : (tensor<2xi1>) -> tensor<2xf64>
      %count = dmlc.reduce_sum %valid {dims = array<i64: 0>} : (tensor<2xf64>) -> tensor<f64>
      %p = dmlc.softmax %y {dim = 1 : i64} : (tensor<2x5xf64>) -> tensor<2x5xf64>
      %tc = dmlc.reshape %tm : (tensor<2xi64>) -> tensor<2x1xi64>
      %hit = dmlc.eq %tc, %classes : (tensor<2x1xi64>, tensor<5xi64>) -> tensor<2x5xi1>
      %one = dmlc.cast %hit {to = "f64"} : (tensor<2x5xi1>) -> tensor<2x5xf64>
      %d = dmlc.sub %p, %one : (tensor<2x5xf64>, tensor<2x5xf64>) -> tensor<2x5xf64>
      %vc = dmlc.reshape %valid : (tensor<2xf64>) -> tensor<2x1xf64>
      %dy = dmlc.mul %d, %vc : (tensor<2x5xf64>, tensor<2x1xf64>) -> tensor<2x5xf64>
      %dw = dmlc.contract %xm, %dy {equation = "bk,bj->kj"} : (tensor<2x6xf64>, tensor<2x5xf64>) -> tensor<6x5xf64>
      dmlc.yield %dw, %sum, %count : (tensor<6x5xf64>, tensor<f64>, tensor<f64>) -> ()
    } : () -> (tensor<6x5xf64>, tensor<f64>, tensor<f64>)
    %dws, %lall, %all = comm.all_reduce %a0, %a1, %a2 {axes = ["data"], combiner = "sum"} : (tensor<6x5xf64>, tensor<f64>, tensor<f64>) -> (tensor<6x5xf64>, tensor<f64>, tensor<f64>)
    %g = dmlc.div %dws, %all : (tensor<6x5xf64>, tensor<f64>) -> tensor<6x5xf64>
    %decay = dmlc.full {value = 0.9 : f64} : () -> tensor<f64>
    %m0 = dmlc.mul %m, %decay : (tensor<6x5xf64>, tensor<f64>) -> tensor<6x5xf64>
    %m1 = dmlc.add %m0, %g : (tensor<6x5xf64>, tensor<6x5xf64>) -> tensor<6x5xf64>
    %step = dmlc.mul %m1, %lr : (tensor<6x5xf64>, tensor<f64>) -> tensor<6x5xf64>
    %w1 = dmlc.sub %w, %step : (tensor<6x5xf64>, tensor<6x5xf64>) -> tensor<6x5xf64>
    %loss = dmlc.div %lall, %all : (tensor<f64>, tensor<f64>) -> tensor<f64>
    func.return %loss, %w1, %m1 : tensor<f64>, tensor<6x5xf64>, tensor<6x5xf64>
  }
}
