"""Deep models with repeated layers, for what a step takes: two programs with few of the layers instead of one with all.

Both go through a pipeline whose decisions are the same for every layer: no buckets, chunks or search for an order, which look at the whole
program. Their simulated steps then differ by one layer, and that of the whole model follows (`dmlc.simulate.depth`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dmlc.driver import USUAL, Loaded, Options, annotate, run_pipeline
from dmlc.follow import Follow, Names, Placed
from dmlc.ir.core import Module
from dmlc.ir.verifier import verify
from dmlc.simulate.depth import further
from dmlc.simulate.memory import memory_map
from dmlc.simulate.repeats import Repeats, correspondence, find_repeats, shortened

MANY = 8  # layers from which a model is deep
FEWER, MORE = 4, 5  # layers of the two programs: the second stands for those left out, and its surroundings are those of a deep model
LEFT_OUT = ("joint", "overlap-split", "tensor-fusion", "tensor-partition", "plan-memory")


@dataclass(frozen=True)
class Layers:
    """`count` layers; the per-rank programs with `FEWER` and `MORE` of them, and how many the second leaves out."""

    count: int
    fewer: Module
    more: Module

    @property
    def left_out(self) -> int:
        return self.count - MORE

    @property
    def note(self) -> str:
        return f"{self.count} equal layers, decided once: worked out from {FEWER} and {MORE} of them, without buckets and chunks (all of them: --whole)"


def layers_of(loaded: Loaded, options: Options, many: int = MANY) -> Layers | None:
    """The short programs of a model with `many` equal layers or more; None for another, and where the request is about one certain program."""
    if options.pipeline or options.schedule or options.dump is not None or options.check:
        return None
    repeats = find_repeats(loaded.module.main)
    if repeats is None or repeats.count < max(many, MORE + 1):
        return None
    with _without_collections():
        found, placed = _compiled(loaded, options, repeats)
        if found is not None and options.train is not None and options.train.recompute == "auto" and _peak(found) > _limit(found.more, options):
            everything = replace(options, train=replace(options.train, recompute="all"))
            found, _ = _compiled(loaded, everything, repeats, placed)  # the plan asks only whether anything may be made again
    return found


def _compiled(loaded: Loaded, options: Options, repeats: Repeats, placed: Placed | None = None) -> tuple[Layers | None, Placed | None]:
    """Both programs, by the plan given or that of the shorter one, and that plan."""
    fewer, more = (shortened(loaded.module, repeats, keep) for keep in (FEWER, MORE))
    if fewer is None or more is None:
        return None, None
    same = correspondence(loaded.module.main, repeats, repeats.count - MORE + 2, 1)  # the layer that only the longer program has
    names = Names(frozenset(op.id for op in more.main.body), same)
    placed = _run(loaded, options, fewer, Names(frozenset(op.id for op in fewer.main.body)), placed)
    try:
        _run(loaded, options, more, names, placed)
    except KeyError:
        return None, None
    if "dmlc.work" in more.attrs:
        more.attrs["dmlc.work"] = further(fewer.attrs["dmlc.work"], more.attrs["dmlc.work"], repeats.count - MORE)
    return Layers(repeats.count, fewer, more), placed


def _run(loaded: Loaded, options: Options, module: Module, names: Names, placed: Placed | None = None) -> Placed:
    """Compile a short program, in place: by its own plan or by the one given."""
    annotate(module, options)
    before, after = pipelines_of(module)
    short = replace(loaded, module=module, remarks=[], evaluation=None)
    follow = Follow(placed, names) if placed is not None else None
    run_pipeline(short, replace(options, pipeline=before), lambda p: None, before_plan=follow, verified=False)
    placed = placed or Placed.of(module, names)
    run_pipeline(short, replace(options, pipeline=after), lambda p: None, verified=False)
    verify(module)
    return placed


def pipelines_of(module: Module) -> tuple[str, str]:
    """The usual passes of the module's mode up to `plan`, and those behind it, without those that decide differently for equal layers."""
    from dmlc.passmanager.pipeline import parse_pipeline, print_pipeline
    from dmlc.pipelines import PIPELINES

    passes = [p for p in parse_pipeline(PIPELINES[USUAL[module.attrs.get("dmlc.mode")]], PIPELINES) if p.name not in LEFT_OUT]
    passes = [replace(p, effort=0) if p.name == "schedule" else p for p in passes]  # type: ignore[call-arg]
    at = next(i for i, p in enumerate(passes) if p.name == "plan") + 1
    return print_pipeline(passes[:at]), print_pipeline(passes[at:])


def _peak(layers: Layers) -> int:
    fewer, more = (memory_map(m.main).peak_bytes for m in (layers.fewer, layers.more))
    return further(fewer, more, layers.left_out)


def _limit(module: Module, options: Options) -> int:
    from dmlc.cluster import Cluster

    return options.memory or Cluster.of(module).memory


@contextmanager
def _without_collections() -> Iterator[None]:
    """The programs are small and stay: looking for garbage among their ops takes a tenth of the time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
