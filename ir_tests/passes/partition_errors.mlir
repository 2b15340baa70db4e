// RUN: dmlc opt %s --split-input-file --passes partition --expect-error | filecheck %s

// A dim that an op needs whole.
// CHECK: partition_errors.mlir:8:10: error: 'dmlc.softmax' cannot be placed so: factor c is whole
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()

func.func @whole(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %y = dmlc.softmax %x {dim = 1 : i64, dmlc.place = {c = ["model"]}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    func.return %y : tensor<4x8xf32>
}

// -----

// CHECK: error: 'dmlc.exp' cannot be placed so: the op has no factor j (e1 e0 -> e1 e0)
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @factor(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %y = dmlc.exp %x {dmlc.place = {j = ["model"]}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    func.return %y : tensor<4x8xf32>
}

// -----

// The inner factor of a merged dim, the outer one whole: the parts would be strided.
// CHECK: error: 'dmlc.reshape' cannot be placed so: factor f1 lies inside f0, which is not split down to 1
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @strided(%x: tensor<4x8xf32>) -> tensor<32xf32> {
    %y = dmlc.reshape %x {dmlc.place = {f1 = ["model"]}} : (tensor<4x8xf32>) -> tensor<32xf32>
    func.return %y : tensor<32xf32>
}

// -----

// CHECK: error: 'dmlc.matmul' cannot be placed so: factor j of 10 does not split into grains of 4
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @grain(%x: tensor<4x8xf32>, %w: tensor<8x10xf32>) -> tensor<4x10xf32> {
    %y = dmlc.matmul %x, %w {dmlc.place = {j = ["model"], grains = {j = 4 : i64}}} : (tensor<4x8xf32>, tensor<8x10xf32>) -> tensor<4x10xf32>
    func.return %y : tensor<4x10xf32>
}

// -----

// CHECK: error: 'dmlc.relu' cannot be placed so: no such linear operand set
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @linear(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %y = dmlc.relu %x {dmlc.place = {linear = {model = 0 : i64}}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    func.return %y : tensor<4x8xf32>
}

// -----

// CHECK: error: 'dmlc.embedding' has no strategy "columns"; it has ['vocabulary']
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @strategy(%t: tensor<9x4xf32>, %i: tensor<3xi64>) -> tensor<3x4xf32> {
    %y = dmlc.embedding %t, %i {dmlc.place = {strategy = {columns = ["model"]}}} : (tensor<9x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
    func.return %y : tensor<3x4xf32>
}

// -----

// A replicated bias is nobody's partial sum: added to one on every rank it would count as often as there are ranks.
// CHECK: error: an operand that lies as #dmlc.sharding<@mesh, [{}]> cannot become #dmlc.sharding<@mesh, [{}], unreduced={"model": "sum"}>; a complete value is nobody's partial sum
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @bias(%x: tensor<2x4xf32>, %w: tensor<4x3xf32>, %b: tensor<3xf32>) -> tensor<2x3xf32> {
    %a = dmlc.matmul %x, %w {dmlc.place = {k = ["model"]}} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %y = dmlc.add %a, %b {dmlc.place = {linear = {model = 0 : i64}}} : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    func.return %y : tensor<2x3xf32>
}

// -----

// What the verifier refuses before: an axis the mesh has not, one axis for two factors.
// CHECK: error: dmlc.place of 'dmlc.exp' names the axis "modell"; the mesh has model; did you mean 'model'?
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @axis(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %y = dmlc.exp %x {dmlc.place = {e0 = ["modell"]}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    func.return %y : tensor<4x8xf32>
}

// -----

// CHECK: error: dmlc.place of 'dmlc.exp' uses the axis "model" twice
dmlc.mesh {sym_name = "mesh", axes = #dmlc.axes<["model"=2]>} : () -> ()
func.func @twice(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %y = dmlc.exp %x {dmlc.place = {e0 = ["model"], e1 = ["model"]}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    func.return %y : tensor<4x8xf32>
}
