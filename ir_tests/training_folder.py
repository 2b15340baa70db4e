"""A small training folder written by hand, in the form the compiler gives: a perceptron with momentum and clipping in float64, on any number
of ranks, with the optimizer's state whole on each or split over them. Tests of the trainer need no compiler for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dmlc.codegen.copied import prelude_text, source_of
from dmlc.codegen.output import FILES, TRAINING_FILES

INPUTS, HIDDEN, CLASSES = 6, 5, 3
PARAMS = {"w1": (HIDDEN, INPUTS), "b1": (HIDDEN,), "w2": (CLASSES, HIDDEN)}

MODEL = '''"""One step of a perceptron by PyTorch's own differentiation."""

import torch
from runtime import Collectives, local_window, nested_parts

SPLIT = {split}
NAMES = ("w1", "b1", "w2")


def losses(p, x, target):
    logits = torch.relu(x @ p["w1"].T + p["b1"]) @ p["w2"].T
    return logits, torch.nn.functional.cross_entropy(logits, target, reduction="none")


class Program:
    def __init__(self, mesh, device):
        self.mesh, self.comm = mesh, Collectives(mesh)

    def total(self, tensors):
        return self.comm.all_reduce(tensors, ("data",), "sum") if self.mesh.size > 1 else tensors

    def valid(self, weights, x):
        """1 for the rows of all microbatches that hold samples."""
        k, m = x.shape[:2]
        first = (torch.arange(k) * self.mesh.size + self.mesh.rank) * m
        return (first[:, None] + torch.arange(m) < weights["batch_size"]).double()

    def __call__(self, weights, inputs):
        x, target, n = inputs["x"], inputs["target"], weights["batch_size"]
        assert x.shape[0] == int(weights["microbatches"])
        valid = self.valid(weights, x)
        p = {{name: weights[name].detach().clone().requires_grad_() for name in NAMES}}
        with torch.enable_grad():
            _, each = losses(p, x.flatten(0, 1), target.flatten())
            loss = (each * valid.flatten()).sum() / n
        loss, *grads = self.total((loss.detach(), *torch.autograd.grad(loss, list(p.values()))))
        norm = sum((g * g).sum() for g in grads).sqrt()
        clip = torch.clamp(weights["max_norm"] / (norm + 1e-6), max=1.0)
        new = []
        for name, g in zip(NAMES, grads):
            g = g * clip + weights["weight_decay"] * weights[name]
            momentum = 0.9 * weights[name + "_momentum"] + self.mine(g)
            new += [weights[name] - weights["lr"] * self.whole(momentum, g.shape[0]), momentum]
        return [loss, norm, *new, weights["rng_step"] + 1]

    def mine(self, g):
        if not SPLIT:
            return g
        return nested_parts(g, 0, g.shape[0], 1, [self.mesh.size])[self.mesh.rank].clone()

    def whole(self, x, n):
        return self.comm.all_gather((x,), ("data",), (0,), (n,), (1,))[0] if SPLIT else x
'''

EVALUATION = '''"""Sums over a batch in evaluation."""

from model import Program as Training
from model import losses


class Program(Training):
    def __call__(self, weights, inputs):
        valid = self.valid(weights, inputs["x"]).flatten()
        target = inputs["target"].flatten()
        logits, each = losses(weights, inputs["x"].flatten(0, 1), target)
        return list(self.total(((each * valid).sum(), valid.sum(), ((logits.argmax(-1) == target) * valid).sum())))
'''


def row(name: str, role: str, shape: tuple[int, ...], dtype: str = "float64", dims: Any = None, **more: Any) -> dict[str, Any]:
    found = {"name": name, "role": role, "dtype": dtype, "shape": shape, "dims": dims or ((),) * len(shape), "grains": (1,) * len(shape)}
    return found | dict.fromkeys(("range", "order", "stage", "names", "of", "slot", "init", "batch_dim", "micro", "frozen", "overridable", "updates")) | more


def arguments(ranks: int, rows: int, microbatches: int, split: bool) -> list[dict[str, Any]]:
    data = ("data",) if ranks > 1 else ()
    batch = {"batch_dim": 0, "micro": True}
    found = [row("x", "input", (microbatches, ranks * rows, INPUTS), dims=((), data, ()), **batch)]
    found += [row(name, "param", shape, names=(f"layer.{name}", "tied.w1") if name == "w1" else (f"layer.{name}",)) for name, shape in PARAMS.items()]
    found += [row("target", "input", (microbatches, ranks * rows), "int64", ((), data), range=(0, CLASSES), **batch)]
    for name, shape in PARAMS.items():
        dims = (data, *((),) * (len(shape) - 1)) if split else None
        found.append(row(f"{name}_momentum", "state", shape, dims=dims, of=name, slot="momentum", init=0.0))
    found += [row("rng_step", "state", (), "int64", init=0), row("rng_seed", "seed", (), "int64")]
    found += [row(name, "hyper", ()) for name in ("lr", "weight_decay", "max_norm")]
    return found + [row(name, "size", (), "int64") for name in ("batch_size", "microbatches")]


def results(ranks: int, split: bool) -> list[dict[str, Any]]:
    by_name = {a["name"]: a for a in arguments(ranks, 1, 1, split)}
    names = [n for p in PARAMS for n in (p, f"{p}_momentum")] + ["rng_step"]
    return [row("loss", "result", ()), row("grad_norm", "result", ())] + [{**by_name[n], "role": "result", "updates": n} for n in names]


def table(ranks: int, arguments: list[dict[str, Any]], results: list[dict[str, Any]], train: dict[str, Any]) -> str:
    mesh = {"data": ranks} if ranks > 1 else {}
    values = {"MESH": mesh, "RANKS": ranks, "WEIGHTS": "weights/model.safetensors", "TOLERANCE": 1e-4, "ARGUMENTS": arguments, "RESULTS": results}
    return "".join(f"{name} = {value!r}\n" for name, value in {**values, "TRAIN": train}.items())


def write_training_folder(out: Path, ranks: int, rows: int = 2, microbatches: int = 2, batch: int | None = None, split: bool = False) -> Path:
    """A folder for `ranks` ranks with `rows` samples a rank and microbatch."""
    import torch
    from safetensors.torch import save_file

    (out / "weights").mkdir(parents=True)
    train = {"batch": batch or ranks * rows * microbatches, "microbatches": microbatches, "rows": rows, "data_axes": ("data",) if ranks > 1 else ()}
    train |= {"loss": "cross-entropy", "optimizer": "sgd", "plan": f"dp={ranks}", "target": "target", "model": "perceptron"}
    given = arguments(ranks, rows, microbatches, split)
    kept = [a for a in given if a["role"] in ("input", "param", "size")]
    sums = [row(name, "result", ()) for name in ("loss_sum", "count", "correct")]
    texts = {"model.py": MODEL.format(split=split and ranks > 1), "table.py": table(ranks, given, results(ranks, split), train)}
    texts |= {"evaluation.py": EVALUATION, "evaluation_table.py": table(ranks, kept, sums, train), "prelude.py": prelude_text()}
    for name in (*FILES, *TRAINING_FILES):
        texts[name] = source_of("dmlc.codegen.output", name)
    for name, text in texts.items():
        (out / name).write_text(text)
    draw = torch.Generator().manual_seed(7)
    save_file({n: torch.randn(s, generator=draw, dtype=torch.float64) for n, s in PARAMS.items()}, str(out / "weights/model.safetensors"))
    return out
