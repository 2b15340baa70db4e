"""Fourier transforms, as products with a matrix of cosines and sines. Complex numbers are a last dim of two, real ones of one."""

from __future__ import annotations

import math

import numpy as np

from dmlc.frontend.onnx.emit import concrete, type_of
from dmlc.frontend.onnx.node import Node
from dmlc.frontend.onnx.table import op
from dmlc.frontend.onnx.tensors import array_from, dtype_of_element, to_torch
from dmlc.frontend.onnx.values import Known, Tensor
from dmlc.ir.location import DmlcError


@op("DFT", 17)
def dft_attribute(n: Node) -> Tensor:
    return _dft(n, n.attr("axis", 1))


@op("DFT", 20)
def dft(n: Node) -> Tensor:
    return _dft(n, n.ints(2, "the axis")[0] if n.has(2) else -2)


def _dft(n: Node, axis: int) -> Tensor:
    rank, inverse, onesided = n.rank(0), bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    dim = n.axis(axis, rank)
    if dim == rank - 1:
        raise DmlcError("the axis is the dim of real and imaginary parts")
    size = n.shape(0)[dim]
    length = n.ints(1, "the length")[0] if n.has(1) else 2 * (size - 1) if inverse and onesided else size
    if length < 1:
        raise DmlcError(f"a transform of length {length}")
    return transformed(n, n[0], dim, length, inverse, onesided)


def transformed(n: Node, x: Tensor, dim: int, length: int, inverse: bool, onesided: bool) -> Tensor:
    """The transform of one dim, cut or filled with zeros to the length it reads."""
    shape = concrete(x)
    if shape[-1] not in (1, 2) or (onesided and not inverse and shape[-1] != 1) or (onesided and inverse and shape[-1] != 2):
        raise DmlcError(f"a last dim of {shape[-1]} (parts of a number) does not go with onesided = {int(onesided)} and inverse = {int(inverse)}")
    read = length // 2 + 1 if inverse and onesided else length
    x = n.slice(x, dim, 0, min(read, shape[dim]))  # cells beyond the end are zeros: leaving their rows out is the same
    matrix = _inverse(length, onesided) if inverse else _forward(length, onesided)
    matrix = matrix[: shape[-1], :read][:, : concrete(x)[dim]]
    dtype = type_of(x).dtype
    wide = "f64"  # the sums cancel: where the transform is zero, f32 would leave its rounding of large terms
    letters = "abcdefgh"[: len(shape) - 1]
    inner = letters[dim]
    equation = f"{letters}p,p{inner}zq->{letters.replace(inner, 'z')}q"
    return n.cast(n.emit("dmlc.contract", n.cast(x, wide), Known(array_from(matrix, wide), wide), equation=equation), dtype)


def _forward(length: int, onesided: bool) -> np.ndarray:
    """[part in, place, frequency, part out]"""
    angle = 2 * math.pi / length * (np.outer(np.arange(length), np.arange(length // 2 + 1 if onesided else length)) % length)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]).transpose(0, 2, 3, 1)


def _inverse(length: int, onesided: bool) -> np.ndarray:
    """[part in, frequency, place, part out]; one-sided, the missing frequencies are the conjugates of those given, and the result is real."""
    frequencies = np.arange(length // 2 + 1 if onesided else length)
    angle = 2 * math.pi / length * (np.outer(frequencies, np.arange(length)) % length)
    parts = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]).transpose(0, 2, 3, 1) / length
    if not onesided:
        return parts
    twice = np.where((frequencies == 0) | (2 * frequencies == length), 1.0, 2.0)
    return parts[..., :1] * twice[None, :, None, None]


@op("STFT", 17)
def stft(n: Node) -> Tensor:
    """Frames of the signal [batch, length, parts], one each `frame_step`, times a window, transformed."""
    shape, step = n.shape(0), n.ints(1, "the step")[0]
    length = n.ints(3, "the frame length")[0] if n.has(3) else n.shape(2)[0] if n.has(2) else shape[1]
    if step < 1 or not 1 <= length <= shape[1]:
        raise DmlcError(f"frames of {length} every {step} of a signal of {shape[1]}")
    frames = (shape[1] - length) // step + 1
    places = Known.of(np.arange(frames)[:, None] * step + np.arange(length)[None, :])
    cut = n.emit("dmlc.take", n[0], places, dim=1)
    if n.has(2):
        cut = n.pointwise("dmlc.mul", cut, n.reshape(n[2], (length, 1)))
    return transformed(n, cut, 2, length, False, bool(n.attr("onesided", 1)) and shape[-1] == 1)


@op("MelWeightMatrix", 17, static=True)
def mel_weight_matrix(n: Node) -> Known:
    """Triangles over the frequency bins, evenly spaced on the mel scale; as the specification's reference computes their corners."""
    names = "the number of bins", "the transform's length", "the sampling rate", "the lower edge", "the upper edge"
    bins, length, rate, low, high = (to_torch(n.known(i, what).reshape(-1)[0], n.dtype(i)).item() for i, what in enumerate(names))
    mel = [2595 * math.log10(1 + edge / 700) for edge in (low, high)]
    points = mel[0] + np.arange(bins + 2) * (mel[1] - mel[0]) / (bins + 2)
    corners = (((length + 1) * 700 * (10 ** (points / 2595) - 1)) // rate).astype(int)
    rows, matrix = np.arange(length // 2 + 1), np.zeros((length // 2 + 1, bins))
    for i, (left, centre, right) in enumerate(zip(corners, corners[1:], corners[2:])):
        rising = (rows >= left) & (rows <= centre)
        matrix[rising, i] = (rows[rising] - left) / (centre - left) if centre > left else 1
        falling = (rows >= centre) & (rows < right)
        matrix[falling, i] = (right - rows[falling]) / max(right - centre, 1)
    dtype = dtype_of_element(n.attr("output_datatype", 1), "the result")
    return Known(array_from(matrix, dtype), dtype)
