"""Kernels that the code generation tests emit: functions as IR text, each with the template it takes, and inputs that need care."""

from __future__ import annotations

import math

import torch

NAN = math.nan

PROGRAM = """
func.func private @bias_gelu(%x: tensor<5x300xf32>, %b: tensor<300xf32>) -> tensor<5x300xf32> {
  %s = dmlc.add %x, %b : (tensor<5x300xf32>, tensor<300xf32>) -> tensor<5x300xf32>
  %g = dmlc.gelu %s {approximate = "tanh"} : (tensor<5x300xf32>) -> tensor<5x300xf32>
  func.return %g : tensor<5x300xf32>
}
func.func private @broadcasts(%a: tensor<2x1x7x3xf32>, %b: tensor<5x1x3xf32>, %c: tensor<f32>, %d: tensor<2x5x1x1xf32>) -> (tensor<2x5x7x3xf32>, tensor<2x5x7x3xf32>) {
  %s = dmlc.add %a, %b : (tensor<2x1x7x3xf32>, tensor<5x1x3xf32>) -> tensor<2x5x7x3xf32>
  %t = dmlc.mul %s, %c : (tensor<2x5x7x3xf32>, tensor<f32>) -> tensor<2x5x7x3xf32>
  %u = dmlc.sub %t, %d : (tensor<2x5x7x3xf32>, tensor<2x5x1x1xf32>) -> tensor<2x5x7x3xf32>
  %e = dmlc.broadcast %b : (tensor<5x1x3xf32>) -> tensor<2x5x7x3xf32>
  %v = dmlc.div %u, %e : (tensor<2x5x7x3xf32>, tensor<2x5x7x3xf32>) -> tensor<2x5x7x3xf32>
  func.return %u, %v : tensor<2x5x7x3xf32>, tensor<2x5x7x3xf32>
}
func.func private @half_chain(%x: tensor<3x129xbf16>, %y: tensor<3x129xbf16>) -> (tensor<3x129xbf16>, tensor<3x129xf16>, tensor<3x129xf64>) {
  %c = dmlc.full {value = 0.125 : f64} : () -> tensor<bf16>
  %s = dmlc.add %x, %y : (tensor<3x129xbf16>, tensor<3x129xbf16>) -> tensor<3x129xbf16>
  %t = dmlc.mul %s, %c : (tensor<3x129xbf16>, tensor<bf16>) -> tensor<3x129xbf16>
  %h = dmlc.cast %x {to = "f16"} : (tensor<3x129xbf16>) -> tensor<3x129xf16>
  %w = dmlc.cast %y {to = "f64"} : (tensor<3x129xbf16>) -> tensor<3x129xf64>
  func.return %t, %h, %w : tensor<3x129xbf16>, tensor<3x129xf16>, tensor<3x129xf64>
}
func.func private @double(%x: tensor<33xf64>, %y: tensor<33xf64>) -> tensor<33xf64> {
  %c = dmlc.full {value = 0.1 : f64} : () -> tensor<f64>
  %s = dmlc.mul %x, %c : (tensor<33xf64>, tensor<f64>) -> tensor<33xf64>
  %m = dmlc.maximum %s, %y : (tensor<33xf64>, tensor<33xf64>) -> tensor<33xf64>
  %b = dmlc.gt %m, %c : (tensor<33xf64>, tensor<f64>) -> tensor<33xi1>
  %t = dmlc.select %b, %m, %c : (tensor<33xi1>, tensor<33xf64>, tensor<f64>) -> tensor<33xf64>
  func.return %t : tensor<33xf64>
}
func.func private @integers(%x: tensor<7x11xi64>, %y: tensor<7x11xi64>) -> (tensor<7x11xi64>, tensor<7x11xi64>, tensor<7x11xi1>) {
  %one = dmlc.full {value = 4611686018427387904 : i64} : () -> tensor<i64>
  %s = dmlc.add %x, %one : (tensor<7x11xi64>, tensor<i64>) -> tensor<7x11xi64>
  %q = dmlc.div %x, %y {rounding = "floor"} : (tensor<7x11xi64>, tensor<7x11xi64>) -> tensor<7x11xi64>
  %r = dmlc.rem %x, %y : (tensor<7x11xi64>, tensor<7x11xi64>) -> tensor<7x11xi64>
  %m = dmlc.mul %q, %r : (tensor<7x11xi64>, tensor<7x11xi64>) -> tensor<7x11xi64>
  %l = dmlc.lt %x, %y : (tensor<7x11xi64>, tensor<7x11xi64>) -> tensor<7x11xi1>
  func.return %s, %m, %l : tensor<7x11xi64>, tensor<7x11xi64>, tensor<7x11xi1>
}
func.func private @bytes(%x: tensor<300xi8>, %y: tensor<300xui8>) -> (tensor<300xi8>, tensor<300xui8>, tensor<300xi32>) {
  %c = dmlc.full {value = 3 : i64} : () -> tensor<i8>
  %d = dmlc.full {value = 250 : i64} : () -> tensor<ui8>
  %s = dmlc.mul %x, %c : (tensor<300xi8>, tensor<i8>) -> tensor<300xi8>
  %t = dmlc.add %y, %d : (tensor<300xui8>, tensor<ui8>) -> tensor<300xui8>
  %v = dmlc.cast %t {to = "i32"} : (tensor<300xui8>) -> tensor<300xi32>
  %u = dmlc.cast %s {to = "i32"} : (tensor<300xi8>) -> tensor<300xi32>
  %w = dmlc.maximum %u, %v : (tensor<300xi32>, tensor<300xi32>) -> tensor<300xi32>
  func.return %s, %t, %w : tensor<300xi8>, tensor<300xui8>, tensor<300xi32>
}
func.func private @truths(%p: tensor<4x9xi1>, %q: tensor<9xi1>, %x: tensor<4x9xf32>) -> (tensor<4x9xi1>, tensor<4x9xf32>, tensor<4x9xf32>) {
  %yes = dmlc.full {value = true} : () -> tensor<i1>
  %a = dmlc.logical_and %p, %q : (tensor<4x9xi1>, tensor<9xi1>) -> tensor<4x9xi1>
  %n = dmlc.logical_xor %a, %yes : (tensor<4x9xi1>, tensor<i1>) -> tensor<4x9xi1>
  %z = dmlc.full {value = -2.5 : f64} : () -> tensor<f32>
  %s = dmlc.select %n, %x, %z : (tensor<4x9xi1>, tensor<4x9xf32>, tensor<f32>) -> tensor<4x9xf32>
  %c = dmlc.cast %p {to = "f32"} : (tensor<4x9xi1>) -> tensor<4x9xf32>
  func.return %n, %s, %c : tensor<4x9xi1>, tensor<4x9xf32>, tensor<4x9xf32>
}
func.func private @constants(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
  %a = dmlc.full {value = 2.0 : f64} : () -> tensor<f32>
  %b = dmlc.full {value = -3.0 : f64} : () -> tensor<6xf32>
  %c = dmlc.mul %a, %b : (tensor<f32>, tensor<6xf32>) -> tensor<6xf32>
  %d = dmlc.tanh %a : (tensor<f32>) -> tensor<f32>
  %z = dmlc.mul %x, %d : (tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
  %y = dmlc.add %z, %c : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  func.return %c, %y : tensor<6xf32>, tensor<6xf32>
}
func.func private @numbers(%x: tensor<f32>, %y: tensor<f32>) -> (tensor<f32>, tensor<i1>) {
  %s = dmlc.mul %x, %y : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %e = dmlc.exp %s : (tensor<f32>) -> tensor<f32>
  %l = dmlc.lt %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
  func.return %e, %l : tensor<f32>, tensor<i1>
}
func.func private @ones(%x: tensor<1x1xf32>, %y: tensor<1xf32>) -> tensor<1x1xf32> {
  %s = dmlc.add %x, %y : (tensor<1x1xf32>, tensor<1xf32>) -> tensor<1x1xf32>
  %n = dmlc.softmax %s {dim = 1 : i64} : (tensor<1x1xf32>) -> tensor<1x1xf32>
  func.return %n : tensor<1x1xf32>
}
func.func private @empty_rows(%x: tensor<0x64xf32>, %b: tensor<64xf32>) -> tensor<0x64xf32> {
  %s = dmlc.add %x, %b : (tensor<0x64xf32>, tensor<64xf32>) -> tensor<0x64xf32>
  %g = dmlc.gelu %s : (tensor<0x64xf32>) -> tensor<0x64xf32>
  %n = dmlc.layer_norm %g, %b, %b {eps = 1.0e-05 : f64} : (tensor<0x64xf32>, tensor<64xf32>, tensor<64xf32>) -> tensor<0x64xf32>
  func.return %n : tensor<0x64xf32>
}
func.func private @empty_columns(%x: tensor<3x0xf32>) -> (tensor<3xf32>, tensor<3x0xf32>) {
  %t = dmlc.reduce_sum %x {dims = array<i64: 1>, keepdim = false} : (tensor<3x0xf32>) -> tensor<3xf32>
  %s = dmlc.softmax %x {dim = 1 : i64} : (tensor<3x0xf32>) -> tensor<3x0xf32>
  func.return %t, %s : tensor<3xf32>, tensor<3x0xf32>
}
func.func private @softmax_rows(%x: tensor<4x3x257xf32>, %m: tensor<4x1x257xf32>) -> tensor<4x3x257xf32> {
  %s = dmlc.add %x, %m : (tensor<4x3x257xf32>, tensor<4x1x257xf32>) -> tensor<4x3x257xf32>
  %y = dmlc.softmax %s {dim = 2 : i64} : (tensor<4x3x257xf32>) -> tensor<4x3x257xf32>
  func.return %y : tensor<4x3x257xf32>
}
func.func private @softmax_bf16(%x: tensor<5x100xbf16>) -> tensor<5x100xbf16> {
  %y = dmlc.softmax %x {dim = 1 : i64} : (tensor<5x100xbf16>) -> tensor<5x100xbf16>
  func.return %y : tensor<5x100xbf16>
}
func.func private @softmax_f64(%x: tensor<5x100xf64>) -> tensor<5x100xf64> {
  %y = dmlc.softmax %x {dim = 1 : i64} : (tensor<5x100xf64>) -> tensor<5x100xf64>
  func.return %y : tensor<5x100xf64>
}
func.func private @softmax_wide(%x: tensor<3x50001xf32>) -> tensor<3x50001xf32> {
  %y = dmlc.softmax %x {dim = 1 : i64} : (tensor<3x50001xf32>) -> tensor<3x50001xf32>
  func.return %y : tensor<3x50001xf32>
}
func.func private @log_softmax_f16(%x: tensor<9x33xf16>) -> tensor<9x33xf16> {
  %y = dmlc.log_softmax %x {dim = 1 : i64} : (tensor<9x33xf16>) -> tensor<9x33xf16>
  func.return %y : tensor<9x33xf16>
}
func.func private @add_norm(%x: tensor<3x5x200xbf16>, %r: tensor<3x5x200xbf16>, %w: tensor<200xbf16>, %b: tensor<200xbf16>) -> (tensor<3x5x200xbf16>, tensor<3x5x200xbf16>) {
  %s = dmlc.add %x, %r : (tensor<3x5x200xbf16>, tensor<3x5x200xbf16>) -> tensor<3x5x200xbf16>
  %n = dmlc.layer_norm %s, %w, %b {eps = 1.0e-05 : f64} : (tensor<3x5x200xbf16>, tensor<200xbf16>, tensor<200xbf16>) -> tensor<3x5x200xbf16>
  func.return %s, %n : tensor<3x5x200xbf16>, tensor<3x5x200xbf16>
}
func.func private @norm_two_dims(%x: tensor<5x6x7xf32>, %w: tensor<6x7xf32>, %b: tensor<6x7xf32>) -> tensor<5x6x7xf32> {
  %n = dmlc.layer_norm %x, %w, %b {eps = 1.0e-05 : f64, dims = 2 : i64} : (tensor<5x6x7xf32>, tensor<6x7xf32>, tensor<6x7xf32>) -> tensor<5x6x7xf32>
  func.return %n : tensor<5x6x7xf32>
}
func.func private @norm_wide(%x: tensor<2x30000xf32>, %r: tensor<2x30000xf32>, %w: tensor<30000xf32>, %b: tensor<30000xf32>) -> (tensor<2x30000xf32>, tensor<2x30000xf32>, tensor<2xf32>) {
  %s = dmlc.add %x, %r : (tensor<2x30000xf32>, tensor<2x30000xf32>) -> tensor<2x30000xf32>
  %n = dmlc.layer_norm %s, %w, %b {eps = 1.0e-05 : f64} : (tensor<2x30000xf32>, tensor<30000xf32>, tensor<30000xf32>) -> tensor<2x30000xf32>
  %m = dmlc.reduce_max %s {dims = array<i64: 1>} : (tensor<2x30000xf32>) -> tensor<2xf32>
  func.return %s, %n, %m : tensor<2x30000xf32>, tensor<2x30000xf32>, tensor<2xf32>
}
func.func private @rms_thousands(%x: tensor<2x8xf16>, %w: tensor<8xf16>) -> tensor<2x8xf16> {
  %y = dmlc.rms_norm %x, %w {eps = 1.0e-06 : f64} : (tensor<2x8xf16>, tensor<8xf16>) -> tensor<2x8xf16>
  func.return %y : tensor<2x8xf16>
}
func.func private @reductions(%x: tensor<4x6x5xf32>) -> (tensor<4xf32>, tensor<4x1x1xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.reduce_sum %x {dims = array<i64: 1, 2>} : (tensor<4x6x5xf32>) -> tensor<4xf32>
  %b = dmlc.reduce_max %x {dims = array<i64: 1, 2>, keepdim = true} : (tensor<4x6x5xf32>) -> tensor<4x1x1xf32>
  %c = dmlc.reduce_min %x {dims = array<i64: 1, 2>} : (tensor<4x6x5xf32>) -> tensor<4xf32>
  %d = dmlc.reduce_prod %x {dims = array<i64: 1, 2>} : (tensor<4x6x5xf32>) -> tensor<4xf32>
  func.return %a, %b, %c, %d : tensor<4xf32>, tensor<4x1x1xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func private @whole_sum(%x: tensor<7x13xf32>) -> tensor<f32> {
  %e = dmlc.mul %x, %x : (tensor<7x13xf32>, tensor<7x13xf32>) -> tensor<7x13xf32>
  %a = dmlc.reduce_sum %e {dims = array<i64: 0, 1>} : (tensor<7x13xf32>) -> tensor<f32>
  func.return %a : tensor<f32>
}
func.func private @counted(%x: tensor<6x40xi32>, %p: tensor<6x40xi1>) -> (tensor<6xi32>, tensor<6xi32>, tensor<6xi1>, tensor<6xi1>) {
  %z = dmlc.full {value = -7 : i64} : () -> tensor<i32>
  %y = dmlc.select %p, %x, %z : (tensor<6x40xi1>, tensor<6x40xi32>, tensor<i32>) -> tensor<6x40xi32>
  %a = dmlc.reduce_sum %y {dims = array<i64: 1>} : (tensor<6x40xi32>) -> tensor<6xi32>
  %b = dmlc.reduce_min %x {dims = array<i64: 1>} : (tensor<6x40xi32>) -> tensor<6xi32>
  %c = dmlc.reduce_and %p {dims = array<i64: 1>} : (tensor<6x40xi1>) -> tensor<6xi1>
  %d = dmlc.reduce_or %p {dims = array<i64: 1>} : (tensor<6x40xi1>) -> tensor<6xi1>
  func.return %a, %b, %c, %d : tensor<6xi32>, tensor<6xi32>, tensor<6xi1>, tensor<6xi1>
}
func.func private @rows_and_columns(%x: tensor<3x70xf32>, %r: tensor<3xf32>, %c: tensor<70xf32>) -> (tensor<3x70xf32>, tensor<3xf32>) {
  %k = dmlc.reshape %r : (tensor<3xf32>) -> tensor<3x1xf32>
  %w = dmlc.exp %c : (tensor<70xf32>) -> tensor<70xf32>
  %s = dmlc.mul %x, %k : (tensor<3x70xf32>, tensor<3x1xf32>) -> tensor<3x70xf32>
  %t = dmlc.add %s, %w : (tensor<3x70xf32>, tensor<70xf32>) -> tensor<3x70xf32>
  %m = dmlc.reduce_sum %t {dims = array<i64: 1>} : (tensor<3x70xf32>) -> tensor<3xf32>
  %n = dmlc.sub %m, %r : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
  func.return %t, %n : tensor<3x70xf32>, tensor<3xf32>
}
func.func private @wide_rows(%r: tensor<4xf32>, %x: tensor<4x48xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %k = dmlc.reshape %r : (tensor<4xf32>) -> tensor<4x1xf32>
  %b = dmlc.broadcast %k : (tensor<4x1xf32>) -> tensor<4x48xf32>
  %s = dmlc.reduce_sum %b {dims = array<i64: 1>} : (tensor<4x48xf32>) -> tensor<4xf32>
  %y = dmlc.mul %x, %b : (tensor<4x48xf32>, tensor<4x48xf32>) -> tensor<4x48xf32>
  %t = dmlc.reduce_sum %y {dims = array<i64: 1>} : (tensor<4x48xf32>) -> tensor<4xf32>
  func.return %s, %t : tensor<4xf32>, tensor<4xf32>
}
func.func private @causal(%x: tensor<2x9x9xf32>, %start: tensor<i64>) -> tensor<2x9x9xf32> {
  %q = dmlc.iota %start {dim = 0 : i64} : (tensor<i64>) -> tensor<9x1xi64>
  %k = dmlc.iota {dim = 1 : i64} : () -> tensor<1x9xi64>
  %ok = dmlc.ge %q, %k : (tensor<9x1xi64>, tensor<1x9xi64>) -> tensor<9x9xi1>
  %low = dmlc.full {value = 0xFFF0000000000000 : f64} : () -> tensor<f32>
  %s = dmlc.select %ok, %x, %low : (tensor<9x9xi1>, tensor<2x9x9xf32>, tensor<f32>) -> tensor<2x9x9xf32>
  %y = dmlc.softmax %s {dim = 2 : i64} : (tensor<2x9x9xf32>) -> tensor<2x9x9xf32>
  func.return %y : tensor<2x9x9xf32>
}
func.func private @not_a_number(%x: tensor<4xf32>, %z: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = dmlc.maximum %x, %z : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b = dmlc.maximum %z, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c = dmlc.clamp %x {min = 0.5 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  %d = dmlc.clamp %x {min = 2.0 : f64, max = -1.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  %e = dmlc.relu %x : (tensor<4xf32>) -> tensor<4xf32>
  %f = dmlc.minimum %x, %z : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %a, %b, %c, %d, %e, %f : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
func.func private @not_a_number_rows(%x: tensor<3x4xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
  %a = dmlc.reduce_max %x {dims = array<i64: 1>} : (tensor<3x4xf32>) -> tensor<3xf32>
  %b = dmlc.reduce_min %x {dims = array<i64: 1>} : (tensor<3x4xf32>) -> tensor<3xf32>
  func.return %a, %b : tensor<3xf32>, tensor<3xf32>
}
func.func private @not_a_number_wide(%x: tensor<2x50000xf32>) -> (tensor<2xf32>, tensor<2x50000xf32>) {
  %a = dmlc.reduce_max %x {dims = array<i64: 1>} : (tensor<2x50000xf32>) -> tensor<2xf32>
  %y = dmlc.softmax %x {dim = 1 : i64} : (tensor<2x50000xf32>) -> tensor<2x50000xf32>
  func.return %a, %y : tensor<2xf32>, tensor<2x50000xf32>
}
func.func private @loss(%x: tensor<6x50xf32>, %t: tensor<6xi64>) -> tensor<6xf32> {
  %l = dmlc.cross_entropy %x, %t {ignore = 3 : i64} : (tensor<6x50xf32>, tensor<6xi64>) -> tensor<6xf32>
  func.return %l : tensor<6xf32>
}
func.func private @masked(%x: tensor<6x20x30xf32>, %n: tensor<i64>, %k: tensor<i64>) -> (tensor<6x20x30xf32>, tensor<6x20xf32>) {
  %y = dmlc.mask_pad %x, %n {dim = 1 : i64, identity = "sum"} : (tensor<6x20x30xf32>, tensor<i64>) -> tensor<6x20x30xf32>
  %z = dmlc.mask_pad %y, %k {dim = 2 : i64, identity = "max"} : (tensor<6x20x30xf32>, tensor<i64>) -> tensor<6x20x30xf32>
  %m = dmlc.reduce_max %z {dims = array<i64: 2>} : (tensor<6x20x30xf32>) -> tensor<6x20xf32>
  func.return %y, %m : tensor<6x20x30xf32>, tensor<6x20xf32>
}
func.func private @crowded(%a: tensor<3x4096xf32>, %b: tensor<3x4096xf32>, %c: tensor<3x4096xf32>, %d: tensor<3x4096xf32>, %e: tensor<3x4096xf32>, %f: tensor<3x4096xf32>) -> tensor<3x4096xf32> {
  %ab = dmlc.mul %a, %b : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %cd = dmlc.mul %c, %d : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %ef = dmlc.mul %e, %f : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %s = dmlc.add %ab, %cd : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %t = dmlc.add %s, %ef : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %m = dmlc.softmax %t {dim = 1 : i64} : (tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %u = dmlc.mul %m, %a : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %v = dmlc.mul %u, %b : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %w = dmlc.mul %v, %c : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %x = dmlc.mul %w, %d : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %y = dmlc.mul %x, %e : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  %z = dmlc.mul %y, %f : (tensor<3x4096xf32>, tensor<3x4096xf32>) -> tensor<3x4096xf32>
  func.return %z : tensor<3x4096xf32>
}
"""

TEMPLATES = {
    "bias_gelu": "flat", "broadcasts": "flat", "numbers": "flat", "constants": "flat", "softmax_rows": "persistent", "add_norm": "persistent",
    "whole_sum": "persistent", "softmax_wide": "looped", "norm_wide": "looped", "not_a_number_wide": "looped",
}  # fmt: skip


def _with_nan(rows: int, columns: int) -> torch.Tensor:
    x = torch.linspace(-1, 1, rows * columns).reshape(rows, columns)
    x[0, columns // 3] = NAN
    return x


SPECIAL = {
    "not_a_number": [torch.tensor([-5.0, 0.5, 9.0, NAN]), torch.zeros(4)],
    "not_a_number_rows": [torch.tensor([[1.0, NAN, 3.0, 2.0], [NAN] * 4, [4.0, -1.0, 3.0, 2.0]])],
    "not_a_number_wide": [_with_nan(2, 50000)],
    "rms_thousands": [torch.full((2, 8), 1000.0, dtype=torch.float16), torch.ones(8, dtype=torch.float16)],
    "loss": [torch.randn(6, 50, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 0, 49, 7, 3, 20])],
    "masked": [torch.randn(6, 20, 30, generator=torch.Generator().manual_seed(3)), torch.tensor(13), torch.tensor(0)],
    "causal": [torch.randn(2, 9, 9, generator=torch.Generator().manual_seed(2)), torch.tensor(2)],
    "integers": [torch.arange(-38, 39).reshape(7, 11), (torch.arange(77) % 9 - 4).reshape(7, 11)],
}
