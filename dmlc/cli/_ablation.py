"""What each of the per-rank decisions buys: one program, decided with one kind of decision more in each line, and its simulated step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmlc.driver import Loaded, Options


Row = tuple[str, int, int, int, float]  # line, picoseconds a step, of which communication exposed, bytes at the peak, seconds that deciding took


def print_ablation(rows: Sequence[Row]) -> None:
    """The table of `dmlc.pipelines.ABLATION`."""
    whole = rows[0][1]
    print(f"  {'decided':12} {'step':>12} {'against none':>13} {'exposed':>12} {'peak':>10} {'decided in':>10}")
    for line, step, exposed, peak, seconds in rows:
        print(f"  {line:12} {step / 1e6:9.1f} us {step / whole - 1:+12.1%} {exposed / 1e6:9.1f} us {peak / 1e6:7.1f} MB {seconds:8.1f} s")


def ablation(loaded: Loaded, options: Options, progress: Callable[[Any], None] = lambda p: None) -> list[Row]:
    """Every line as simulated; the module of `loaded` is changed."""
    from dmlc import driver
    from dmlc.cost import CostModel
    from dmlc.passmanager import Context, PassManager, parse_pipeline
    from dmlc.pipelines import ABLATION, PASSES, PIPELINES
    from dmlc.simulate.step import simulate_step

    driver.annotate(loaded.module, options)
    pipeline = PIPELINES[driver.USUAL[loaded.module.attrs.get("dmlc.mode")]]
    before = pipeline.partition(f",{PASSES[0]},")[0]
    driver.run_pipeline(loaded, replace(options, pipeline=before), progress)
    rows = []
    for line, passes in ABLATION.items():
        module, begin = loaded.module.clone(), time.perf_counter()
        PassManager(parse_pipeline(",".join(passes)) if passes else ()).run(module, Context())
        report = simulate_step(module, CostModel.of(module))
        rows.append((line, report.time, report.exposed, report.peak, time.perf_counter() - begin))
    return rows
