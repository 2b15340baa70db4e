// RUN: dmlc opt %s --split-input-file --passes layout --remarks | filecheck %s
// RUN: dmlc opt %s --split-input-file --passes 'layout{force}' --check
// RUN: dmlc opt %s --split-input-file --passes layout,layout | filecheck %s --check-prefix=TWICE

// On a CPU the two convolutions and what lies between run channels-last; the image is converted once, the weights when they are loaded.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %w: tensor<16x16x3x3xf32> {dmlc.role = "param", dmlc.layout = array<i64: 0, 2, 3, 1>}
// CHECK-NEXT: %[[X:.*]] = dmlc.relayout %x {order = array<i64: 0, 2, 3, 1>
// CHECK-NEXT: dmlc.conv %[[X]], %w {{.*}}dmlc.layout = array<i64: 0, 2, 3, 1>
// CHECK-NEXT: dmlc.relu
// CHECK-NEXT: dmlc.conv {{.*}}dmlc.layout = array<i64: 0, 2, 3, 1>
// CHECK-NOT: dmlc.relayout
// TWICE-LABEL: func.func @main
// TWICE-COUNT-1: dmlc.relayout
// TWICE-NOT: dmlc.relayout
builtin.module attributes {dmlc.cluster = "cpu"} {
  func.func @main(%x: tensor<2x16x14x14xf32>, %w: tensor<16x16x3x3xf32> {dmlc.role = "param"}) -> tensor<2x16x14x14xf32> {
    %a = dmlc.conv %x, %w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x16x14x14xf32>, tensor<16x16x3x3xf32>) -> tensor<2x16x14x14xf32>
    %b = dmlc.relu %a : (tensor<2x16x14x14xf32>) -> tensor<2x16x14x14xf32>
    %c = dmlc.conv %b, %w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x16x14x14xf32>, tensor<16x16x3x3xf32>) -> tensor<2x16x14x14xf32>
    func.return %c : tensor<2x16x14x14xf32>
  }
}

// -----

// On tensor cores every kernel between two convolutions reads rows, so nothing is gained.
// CHECK: layout: 2 convolutions stay row-major
// CHECK-LABEL: func.func @kernels_between
// CHECK-NOT: dmlc.relayout
// TWICE-LABEL: func.func @kernels_between
builtin.module attributes {dmlc.cluster = "h100"} {
  func.func @kernels_between(%x: tensor<2x16x14x14xbf16>, %w: tensor<16x16x3x3xbf16> {dmlc.role = "param"}) -> tensor<2x16x14x14xbf16> {
    %a = dmlc.conv %x, %w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x16x14x14xbf16>, tensor<16x16x3x3xbf16>) -> tensor<2x16x14x14xbf16>
    %b = dmlc.relu %a : (tensor<2x16x14x14xbf16>) -> tensor<2x16x14x14xbf16>
    %c = dmlc.conv %b, %w {padding = array<i64: 1, 1, 1, 1>} : (tensor<2x16x14x14xbf16>, tensor<16x16x3x3xbf16>) -> tensor<2x16x14x14xbf16>
    func.return %c : tensor<2x16x14x14xbf16>
  }
}
