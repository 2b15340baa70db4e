"""A whole step of a per-rank program on all its ranks: its time, how much of its communication is exposed, what its memory is taken by.

The program is run as it is written by the event engine (`dmlc.simulate.events`), one lane for each class of ranks that run alike
(`dmlc.simulate.events_classes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dmlc.cost import CostModel
from dmlc.ir.attributes import AttrDict
from dmlc.ir.core import Block, Function, Module, Op
from dmlc.ops.control import TRIPS
from dmlc.simulate.engine import Bounds, overlapped
from dmlc.simulate.events_classes import Classes, Delays, RankClass
from dmlc.simulate.events_lanes import Lane
from dmlc.simulate.events_program import COMPUTE, POST
from dmlc.simulate.longest import critical_path
from dmlc.simulate.memory import Held, all_regions, memory_map
from dmlc.simulate.rows import name_of
from dmlc.simulate.run import Event, Run


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in a step: how many, the bytes a rank sends in them, the picoseconds they take one by one."""

    count: int = 0
    bytes: int = 0
    time: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.count + other.count, self.bytes + other.bytes, self.time + other.time)


@dataclass(frozen=True)
class Peak:
    """Where memory is fullest: the op's id and name, and when it begins (None in a branch that was not taken)."""

    op: str = ""
    name: str = ""
    time: int | None = None


@dataclass(frozen=True)
class StepReport:
    """Times in picoseconds, sizes in bytes, all of one rank: one of those that hold the others up the most.

    time           of the step
    computation    the compute stream's busy time
    communication  the streams' busy times, added up
    exposed        time in which computation waits for communication: what is neither computation nor waiting for the host
    peak           most bytes alive at a time
    memory         what these bytes are, by category (`dmlc.simulate.categories`); adds up to the peak
    traffic        collectives by kind ("all_reduce"), `Traffic` each
    streams        busy time by stream: mesh axes joined by commas
    host           the host's own time for issuing all units
    starved        time in which computation waits for the host
    flops          floating-point operations
    by_kind        busy time by kind of op (`dmlc.simulate.kinds`): "matmul", ..., "all_reduce", ..., and "host", which is `starved`
    sources        busy time at full speed by the source of its price (measured | table | model | default)
    defaults       kinds of op whose price is a default for want of anything better, and how many of them run
    bounds         what no order of this program can beat
    peak_at        where memory is fullest
    ranks          the ranks this is true of, on one kind of `device`
    classes        the reports of all classes of ranks, where there are several; each has its own events
    """

    time: int
    computation: int
    communication: int
    exposed: int
    peak: int
    memory: AttrDict
    traffic: AttrDict
    streams: AttrDict
    host: int
    starved: int
    flops: int
    by_kind: AttrDict
    sources: AttrDict
    defaults: AttrDict
    bounds: Bounds
    peak_at: Peak
    ranks: tuple[int, ...]
    device: str
    run: Run = field(repr=False, compare=False)
    classes: tuple[StepReport, ...] = ()

    @property
    def exposed_share(self) -> float:
        """Part of the communication that is not hidden behind computation, 0 to 1; 0 where nothing is communicated."""
        return min(self.exposed / self.communication, 1.0) if self.communication else 0.0

    @property
    def gap(self) -> float:
        """How far the time is above the bound: 0.1 = ten percent."""
        return self.time / self.bounds.best - 1 if self.bounds.best else 0.0

    @property
    def events(self) -> tuple[Event, ...]:
        """What ran when, in the order of begin (`dmlc.simulate.run.Event`)."""
        return self.run.events

    @property
    def memory_over_time(self) -> tuple[tuple[int, Held], ...]:
        """(time, bytes by category from then on); categories as in `dmlc.simulate.categories.CATEGORIES`."""
        return self.run.memory


def simulate_step(module: Module, cost: CostModel, delays: Delays | None = None) -> StepReport:
    """One run of a per-rank program's main function on all ranks, with the numbers of iterations that its loops name. `delays` names ranks that
    compute slower, by a factor. Raises `DmlcError` where ranks would wait for each other forever."""
    main = module.main
    classes = Classes(main, cost, delays)
    maps = [memory_map(main, _regions_of(classes, one)) for one in classes.classes]
    engine = classes.engine([m.marks for m in maps])
    engine.run()
    reports = [_report(main, Run(engine, *three, classes.mesh)) for three in zip(engine.lanes, classes.classes, maps)]
    slowest = max(reports, key=lambda r: r.computation + r.starved)
    return slowest if len(reports) == 1 else replace(slowest, classes=tuple(reports))


def _regions_of(classes: Classes, ranks: RankClass) -> Callable[[Op], Sequence[Block]]:
    """The blocks of an op that ranks of a class may run: of a pipeline only their stage."""
    place = classes.mesh.coordinates(ranks.first)
    return lambda op: [op.regions[place[op.attrs["axis"]]].block] if op.name == "pipe.schedule" else all_regions(op)


def _report(main: Function, run: Run) -> StepReport:
    lane = run.lane
    streams = AttrDict((",".join(s.axes), lane.moved(i)) for i, s in enumerate(lane.program.streams))
    by_source: dict[str, int] = {}
    for item, count in run.counted():
        by_source[item.cost.source] = by_source.get(item.cost.source, 0) + item.cost.time * count
    return StepReport(
        time=run.end,
        computation=run.computation,
        communication=sum(streams.values()),
        exposed=run.end - run.computation - lane.starved,
        peak=run.map.peak_bytes,
        memory=AttrDict(run.map.by_category()),
        traffic=AttrDict(_traffic(run)),
        streams=streams,
        host=lane.issuing,
        starved=lane.starved,
        flops=sum(item.cost.flops * count for item, count in run.counted()),
        by_kind=AttrDict(run.by_kind),
        sources=AttrDict({s: time for s, time in by_source.items() if time}),
        defaults=AttrDict(_defaults(main, run)),
        bounds=_bounds(main.body, run),
        peak_at=_peak(run),
        ranks=run.ranks.ranks,
        device=run.ranks.device.name,
        run=run,
    )


def _traffic(run: Run) -> dict[str, Traffic]:
    found: dict[str, Traffic] = {}
    for item, count in run.counted():
        if item.moves and count:
            found[item.kind] = found.get(item.kind, Traffic()) + Traffic(count, item.cost.bytes * count, item.cost.time * count)
    return found


def _defaults(main: Function, run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in main.ops():
        if op.name == "dmlc.while" and "count" not in op.attrs:
            said = f"{op.name}, {TRIPS} iterations"
            found[said] = found.get(said, 0) + 1
    for item, count in run.counted():
        if item.cost.source == "default" and count:
            found[item.op.name] = found.get(item.op.name, 0) + count
    return found


def _bounds(block: Block, run: Run) -> Bounds:
    computing, links = run.loads()
    together = overlapped(computing, links, [(s.link, s.computing, s.moving) for s in run.lane.program.streams])
    return Bounds(computing, max(links.values(), default=0), critical_path(block, _times(run.lane)), run.lane.issuing, together)


def _times(lane: Lane) -> dict[Op, int]:
    """What each op takes alone."""
    items = lane.program.items
    found: dict[Op, int] = {}
    for i in lane.code:
        if i[0] in (COMPUTE, POST):
            op = items[i[1]].op
            found[op] = found.get(op, 0) + i[2 if i[0] == COMPUTE else 4]
    return found


def _peak(run: Run) -> Peak:
    op = run.map.at
    if op is None:
        return Peak()
    return Peak(op.id, name_of(op), run.peak_time)
