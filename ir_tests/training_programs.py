"""Training steps of a perceptron in per-rank form, as text: what the back end's passes get from `partition`."""

from __future__ import annotations

from dmlc.cluster import Cluster, Device, Link
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Module
from dmlc.ir.parser import parse_module
from dmlc.ir.verifier import verify


def slow_cluster(ranks: int, bandwidth: int, rate: int = 10**10) -> Cluster:
    """Devices of so few operations (and bytes of memory) a second, and a wire of so few bytes, that launches and latencies are next to nothing."""
    device = Device("slow", AttrDict(f32=rate), 10**10, rate, 1000, "test")
    return Cluster(device, ranks, (Link("wire", 0, 1, bandwidth, "test"),))


def perceptron_step(
    layers: int = 4,
    width: int = 64,
    rows: int = 32,
    count: int = 4,
    peel: bool = True,
    ranks: int = 2,
    device: str = "h100",
    masks: bool = False,
    dtype: str = "f32",
) -> Module:
    """`layers` of tanh(h w), the loss the sum of squares, momentum. Gradients are added up over `count` microbatches of `rows` rows and then
    reduced over "data"; with `peel` the last microbatch stands after the loop. `masks` masks the rows past `batch_size`."""
    text = _Text(layers, width, rows, count, ranks, device, masks, dtype)
    module = parse_module(text.module(peel), "step")
    verify(module)
    return module


class _Text:
    def __init__(self, layers: int, width: int, rows: int, count: int, ranks: int, device: str, masks: bool, dtype: str):
        self.layers, self.width, self.rows, self.count, self.ranks, self.device, self.masks, self.dtype = (
            layers,
            width,
            rows,
            count,
            ranks,
            device,
            masks,
            dtype,
        )
        self.h, self.w, self.s = f"tensor<{rows}x{width}x{dtype}>", f"tensor<{width}x{width}x{dtype}>", f"tensor<{dtype}>"

    def module(self, peel: bool) -> str:
        lines = [f"%lm = dmlc.full {{value = 0.9 : f64}} : () -> {self.s}", f"%one = dmlc.full {{value = 1.0 : f64}} : () -> {self.s}"]
        lines += [f"%total = dmlc.full {{value = {self.count * self.rows * self.ranks} : i64}} : () -> tensor<i64>"]
        lines += ['%r = comm.axis_index {axis = "data"} : () -> tensor<i64>'] if self.masks else []
        lines += self._loop(self.count - 1 if peel else self.count, "a")
        grads = [f"%a_dw{i}" for i in range(self.layers)]
        if peel:
            lines += [f"%last = dmlc.full {{value = {self.count - 1} : i64}} : () -> tensor<i64>", *self._pass("p_", "%last", "#peel")]
            for i in reversed(range(self.layers)):
                lines.append(f"%g{i} = dmlc.add %a_dw{i}, %p_dw{i} : ({self.w}, {self.w}) -> {self.w}")
            grads = [f"%g{i}" for i in range(self.layers)]
        for i in reversed(range(self.layers)):
            lines += self._update(i, grads[i])
        lines.append(f"%l = dmlc.add %a_loss, %p_loss : ({self.s}, {self.s}) -> {self.s}" if peel else f"%l = dmlc.copy %a_loss : ({self.s}) -> {self.s}")
        lines.append(f'%loss = comm.all_reduce %l {{axes = ["data"], combiner = "sum"}} : ({self.s}) -> {self.s}')
        return self._around(lines)

    def _around(self, lines: list[str]) -> str:
        x = f"%x: tensor<{self.count}x{self.rows}x{self.width}x{self.dtype}> " + '{dmlc.role = "input", dmlc.batch_dim = 0 : i64, dmlc.micro, dmlc.global = '
        x += f'array<i64: {self.count}, {self.rows * self.ranks}, {self.width}>, dmlc.sharding = #dmlc.sharding<@mesh, [{{}}, {{"data"}}, {{}}]>}}'
        weights = [f'%w{i}: {self.w} {{dmlc.role = "param", dmlc.names = ["w{i}"]}}' for i in range(self.layers)]
        states = [f'%m{i}: {self.w} {{dmlc.role = "state", dmlc.of = "w{i}", dmlc.slot = "momentum", dmlc.init = 0.0}}' for i in range(self.layers)]
        sizes = [f'%lr: {self.s} {{dmlc.role = "hyper"}}', '%batch_size: tensor<i64> {dmlc.role = "size"}']
        updates = [f'{self.w} {{dmlc.name = "{k}{i}", dmlc.updates = "{k}{i}"}}' for k in "wm" for i in range(self.layers)]
        given = ", ".join(["%loss", *(f"%n{k}{i}" for k in "wm" for i in range(self.layers))])
        types = ", ".join([self.s, *[self.w] * (2 * self.layers)])
        head = f'builtin.module attributes {{dmlc.spmd, dmlc.mode = "train", dmlc.cluster = "{self.device}"}} {{\n  dmlc.mesh {{sym_name = "mesh", axes = #dmlc.axes<['
        head += f'"micro"={self.count}:sequential, "data"={self.ranks}]>}} : () -> ()\n'
        signature = f'  func.func @main({", ".join([x, *weights, *states, *sizes])}) -> ({self.s} {{dmlc.name = "loss"}}, {", ".join(updates)}) {{\n'
        return head + signature + "".join(f"    {line}\n" for line in lines) + f"    func.return {given} : {types}\n  }}\n}}\n"

    def _loop(self, count: int, name: str) -> list[str]:
        results = [*(f"%{name}_dw{i}" for i in range(self.layers)), f"%{name}_loss"]
        types = ", ".join([*[self.w] * self.layers, self.s])
        inside = self._pass("b_", "%i", "")
        ends = ", ".join([*(f"%b_dw{i}" for i in range(self.layers)), "%b_loss"])
        head = f"{', '.join(results)} = dmlc.microbatch {{count = {count} : i64}} {{"
        return [head, "^bb0(%i: tensor<i64>):", *(f"  {line}" for line in inside), f"  dmlc.yield {ends} : ({types}) -> ()", f"}} : () -> ({types})"]

    def _pass(self, p: str, index: str, suffix: str) -> list[str]:
        """Forward and backward of one microbatch; value names begin with `p`."""
        one = f"tensor<1x{self.rows}x{self.width}x{self.dtype}>"
        x = f"tensor<{self.count}x{self.rows}x{self.width}x{self.dtype}>"
        lines = [
            f"%{p}x = dmlc.shard_slice %x, {index} {{dim = 0 : i64, size = 1 : i64}} : ({x}, tensor<i64>) -> {one}",
            f"%{p}h0 = dmlc.reshape %{p}x : ({one}) -> {self.h}",
        ]
        lines += self._valid(p, index)
        for i in range(self.layers):
            lines.append(f'%{p}z{i} = dmlc.matmul %{p}h{i}, %w{i} {{dmlc.id = "fc{i}{suffix}"}} : ({self.h}, {self.w}) -> {self.h}')
            lines.append(f"%{p}h{i + 1} = dmlc.tanh %{p}z{i} : ({self.h}) -> {self.h}")
        n = self.layers
        lines.append(f"%{p}sq = dmlc.mul %{p}h{n}, %{p}h{n} : ({self.h}, {self.h}) -> {self.h}")
        lines += self._masked(f"{p}sqm", f"{p}sq", p)
        lines.append(f"%{p}loss = dmlc.reduce_sum %{p}sqm {{dims = array<i64: 0, 1>}} : ({self.h}) -> {self.s}")
        lines.append(f'%{p}d{n} = dmlc.add %{p}h{n}, %{p}h{n} {{dmlc.of = "{self.layers - 1}"}} : ({self.h}, {self.h}) -> {self.h}')
        for i in reversed(range(n)):
            lines += self._layer_back(p, i)
        return lines

    def _layer_back(self, p: str, i: int) -> list[str]:
        h, w = self.h, self.w
        lines = [
            f"%{p}t{i} = dmlc.mul %{p}h{i + 1}, %{p}h{i + 1} : ({h}, {h}) -> {h}",
            f"%{p}u{i} = dmlc.sub %one, %{p}t{i} : ({self.s}, {h}) -> {h}",
            f'%{p}k{i} = dmlc.mul %{p}d{i + 1}, %{p}u{i} {{dmlc.of = "{i}"}} : ({h}, {h}) -> {h}',
            *self._masked(f"{p}km{i}", f"{p}k{i}", p),
            *self._masked(f"{p}hm{i}", f"{p}h{i}", p),
            f'%{p}dw{i} = dmlc.contract %{p}hm{i}, %{p}km{i} {{equation = "bk,bj->kj", dmlc.of = "{i}"}} : ({h}, {h}) -> {w}',
        ]
        return lines + ([f'%{p}d{i} = dmlc.contract %{p}k{i}, %w{i} {{equation = "bj,kj->bk", dmlc.of = "{i}"}} : ({h}, {w}) -> {h}'] if i else [])

    def _valid(self, p: str, index: str) -> list[str]:
        if not self.masks:
            return []
        counts = f"array<i64: {self.count}, {self.ranks}>"
        return [
            f"%{p}s, %{p}c = dmlc.window %total, {index}, %r {{counts = {counts}, grain = 1 : i64}} : (tensor<i64>, tensor<i64>, tensor<i64>) -> (tensor<i64>, tensor<i64>)",
            f"%{p}left = dmlc.sub %batch_size, %{p}s : (tensor<i64>, tensor<i64>) -> tensor<i64>",
            f"%{p}v = dmlc.clamp %{p}left {{min = 0 : i64, max = {self.rows} : i64}} : (tensor<i64>) -> tensor<i64>",
        ]

    def _masked(self, result: str, source: str, p: str) -> list[str]:
        if not self.masks:
            return [f"%{result} = dmlc.copy %{source} : ({self.h}) -> {self.h}"]
        return [f'%{result} = dmlc.mask_pad %{source}, %{p}v {{dim = 0 : i64, identity = "sum"}} : ({self.h}, tensor<i64>) -> {self.h}']

    def _update(self, i: int, gradient: str) -> list[str]:
        phase = '{dmlc.phase = "update"}'
        w = self.w
        return [
            f'%s{i} = comm.all_reduce {gradient} {{axes = ["data"], combiner = "sum"}} : ({w}) -> {w}',
            f"%mm{i} = dmlc.mul %m{i}, %lm {phase} : ({w}, {self.s}) -> {w}",
            f"%nm{i} = dmlc.add %mm{i}, %s{i} {phase} : ({w}, {w}) -> {w}",
            f"%st{i} = dmlc.mul %nm{i}, %lr {phase} : ({w}, {self.s}) -> {w}",
            f"%nw{i} = dmlc.sub %w{i}, %st{i} {phase} : ({w}, {w}) -> {w}",
        ]
