// RUN: dmlc opt %s --split-input-file --expect-error | filecheck %s

// A future is waited for exactly once on every path.
// CHECK: error: this future is never waited for
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @unused(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  func.return
}

// -----

// CHECK: error: this future is consumed 2 times; it must be once
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @twice(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  %y = comm.wait %f : (!comm.future<tensor<8xf32>>) -> tensor<8xf32>
  %z = comm.wait %f : (!comm.future<tensor<8xf32>>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: a future is given to 'dmlc.barrier'; only comm.wait takes it, or a region that carries it on
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @computed_with(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  %y = dmlc.barrier %x, %f : (tensor<8xf32>, !comm.future<tensor<8xf32>>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: a future is consumed in some regions of 'dmlc.cond' only
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @one_branch(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  %y = dmlc.cond %p {
    %a = comm.wait %f : (!comm.future<tensor<8xf32>>) -> tensor<8xf32>
    dmlc.yield %a : (tensor<8xf32>) -> ()
  }, {
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : (tensor<i1>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: a future from outside is consumed in the body of 'dmlc.microbatch', which may run any number of times; carry it instead
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @in_a_loop(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  %y = dmlc.microbatch {count = 2 : i64} {
  ^bb0(%i: tensor<i64>):
    %a = comm.wait %f : (!comm.future<tensor<8xf32>>) -> tensor<8xf32>
    dmlc.yield %a : (tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'comm.wait' takes a future and gives what it carries
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @wrong_type(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  %y = comm.wait %f : (!comm.future<tensor<8xf32>>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: error: a future is given to 'func.return'; only comm.wait takes it, or a region that carries it on
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @returned(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) -> !comm.future<tensor<8xf32>> {
  %f = comm.all_reduce_start %x {axes = ["data"], combiner = "sum"} : (tensor<8xf32>) -> !comm.future<tensor<8xf32>>
  func.return %f : !comm.future<tensor<8xf32>>
}

// -----

// Types of collectives.
// CHECK: error: 'comm.all_reduce' names the axis "modell", but the mesh has
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @axis(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_reduce %x {axes = ["modell"]} : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'comm.all_reduce' names the axis "micro", which runs in time: no ranks lie along it
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @sequential_axis(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_reduce %x {axes = ["micro"]} : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: unknown combiner "mean"; it is one of sum, prod, max, min, and, or
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @combiner(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_reduce %x {axes = ["data"], combiner = "mean"} : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'comm.all_reduce' delivers (tensor<8xf32>)
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @reduced_type(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_reduce %x {axes = ["data"]} : (tensor<8xf32>) -> tensor<8xf64>
  func.return
}

// -----

// CHECK: error: operands of 'comm.all_reduce' have different dtypes; a bucket holds one
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @bucket_of_two_dtypes(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y, %z = comm.all_reduce %x, %h {axes = ["data"]} : (tensor<8xf32>, tensor<8xbf16>) -> (tensor<8xf32>, tensor<8xbf16>)
  func.return
}

// -----

// CHECK: error: 'comm.all_gather' delivers (tensor<23xf32>)
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @gathered_type(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_gather %x {axes = ["model"], dims = array<i64: 0>, sizes = array<i64: 23>, grains = array<i64: 1>} : (tensor<8xf32>) -> tensor<24xf32>
  func.return
}

// -----

// CHECK: error: 'comm.all_gather' takes 7 elements along dim 0, but an operand is tensor<8xf32>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @part_of_another_size(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_gather %x {axes = ["model"], dims = array<i64: 0>, sizes = array<i64: 20>, grains = array<i64: 1>} : (tensor<8xf32>) -> tensor<20xf32>
  func.return
}

// -----

// CHECK: error: 'comm.reduce_scatter' delivers (tensor<4xf32>)
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @scattered_type(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.reduce_scatter %x {axes = ["model"], dims = array<i64: 0>, sizes = array<i64: 8>, grains = array<i64: 2>} : (tensor<8xf32>) -> tensor<3xf32>
  func.return
}

// -----

// CHECK: error: 'comm.reduce_scatter' takes 9 elements along dim 0, but an operand is tensor<8xf32>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @scatter_of_another_size(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.reduce_scatter %x {axes = ["model"], dims = array<i64: 0>, sizes = array<i64: 9>, grains = array<i64: 1>} : (tensor<8xf32>) -> tensor<3xf32>
  func.return
}

// -----

// CHECK: error: 'comm.reduce_scatter' has 1 operands but 2 sizes
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @entries(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.reduce_scatter %x {axes = ["data"], dims = array<i64: 0>, sizes = array<i64: 8, 8>, grains = array<i64: 1>} : (tensor<8xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: error: 'comm.all_to_all' takes 4 elements along dim 1, but an operand is tensor<4x6xf32>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @all_to_all(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.all_to_all %m {axes = ["data"], split_dims = array<i64: 0>, split_sizes = array<i64: 4>, split_grains = array<i64: 1>, dims = array<i64: 1>, sizes = array<i64: 8>, grains = array<i64: 1>} : (tensor<4x6xf32>) -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: error: 'comm.axis_index' gives a tensor<i64>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @index_type(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.axis_index {axis = "data"} : () -> tensor<i32>
  func.return
}

// -----

// Messages and pipelines.
// CHECK: error: 'comm.send' names coordinate 3 of axis "model", which has 3
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @no_such_peer(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  comm.send %x {axis = "model", to = 3 : i64} : (tensor<8xf32>) -> ()
  func.return
}

// -----

// CHECK: error: 'comm.send' takes one tensor and gives nothing
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @two_messages(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  comm.send %x, %x {axis = "model", to = 1 : i64} : (tensor<8xf32>, tensor<8xf32>) -> ()
  func.return
}

// -----

// CHECK: error: 'comm.recv' takes nothing and gives one tensor
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @receive_into(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.recv %x {axis = "model", source = 1 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'comm.recv' needs the attribute 'source'
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @no_source(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = comm.recv {axis = "model"} : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'pipe.schedule' has 1 regions for 2 stages of axis "data"
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @too_few_stages(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = pipe.schedule {axis = "data"} {
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'pipe.schedule' names the axis "pipe", which the mesh has not
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @no_stage_axis(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = pipe.schedule {axis = "pipe"} {
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: a region of 'pipe.schedule' yields tensor<8xbf16> for a result of tensor<8xf32>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @stage_result(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = pipe.schedule {axis = "data"} {
    dmlc.yield %x : (tensor<8xf32>) -> ()
  }, {
    dmlc.yield %h : (tensor<8xbf16>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// Regions.
// CHECK: error: the region of 'dmlc.microbatch' takes one tensor<i64>, the iteration's index
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @index_argument(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.microbatch {count = 2 : i64} {
  ^bb0(%i: tensor<i32>):
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'dmlc.microbatch' needs a count of at least 1
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @no_iteration(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.microbatch {count = 0 : i64} {
  ^bb0(%i: tensor<i64>):
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'dmlc.microbatch' has 1 results but 2 accumulators
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @accumulators(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.microbatch {count = 2 : i64, acc = ["f32", "f32"]} {
  ^bb0(%i: tensor<i64>):
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: a region of 'dmlc.microbatch' must end in a dmlc.yield of 1 values
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @yields(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.microbatch {count = 2 : i64} {
  ^bb0(%i: tensor<i64>):
    dmlc.yield %x, %x : (tensor<8xf32>, tensor<8xf32>) -> ()
  } : () -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'dmlc.cond' takes a tensor<i1> and two regions
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @one_region(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.cond %p {
    dmlc.yield %x : (tensor<8xf32>) -> ()
  } : (tensor<i1>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: a region of 'dmlc.cond' yields tensor<8xbf16> for a result of tensor<8xf32>
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @branch_result(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.cond %p {
    dmlc.yield %x : (tensor<8xf32>) -> ()
  }, {
    dmlc.yield %h : (tensor<8xbf16>) -> ()
  } : (tensor<i1>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: the region of 'dmlc.scan' takes the index, the carried values, a row of each scanned one, and the shared values
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @carried(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %y = dmlc.scan %x {count = 2 : i64} {
  ^bb0(%c: tensor<8xf32>):
    dmlc.yield %c : (tensor<8xf32>) -> ()
  } : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

// CHECK: error: 'dmlc.window' has 1 indices but 2 counts
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["data"=2, "model"=3, "micro"=4:sequential]>} : () -> ()
func.func @window(%x: tensor<8xf32>, %h: tensor<8xbf16>, %m: tensor<4x6xf32>, %p: tensor<i1>, %n: tensor<i64>) {
  %s, %k = dmlc.window %n, %n {counts = array<i64: 2, 2>} : (tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)
  func.return
}
