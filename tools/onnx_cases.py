"""The node cases of the installed `onnx` (`onnx.backend.test`) through the frontend and the interpreter, on one rank and on two.

    python -m dmlc.tools.onnx_cases [--only PART] [--limit SECONDS] [--json FILE]

Each case runs in a worker process with a time limit and is compared with its own expected outputs. Printed are every case that fails, with what
was said, the reasons in `onnx_failing.json` with their counts, and a table by category. Exit code 1 if the tensor programs that fail are not
exactly those of that file, or one fails on two ranks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dmlc.tools.onnx_case import TENSORS, Outcome, all_cases, category, known_failures, outcome

STATES = ("passed", "refused", "rounded", "wrong", "crashed", "slow")
START_SECONDS = 60.0  # of a worker that has to import torch first


def _work(cases: Mapping[str, Any], names: Any, answers: Any) -> None:
    """In a worker: one case after another, until the pipe closes."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        answers.send(None)
        while True:
            try:
                name = names.recv()
            except EOFError:
                return
            answers.send(outcome(cases[name], Path(folder)))


class Worker:
    """A forked process that knows the cases; replaced when one takes too long or ends it."""

    def __init__(self, cases: Mapping[str, Any], limit: float):
        self.cases, self.limit = cases, limit
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        (taken, self.names), (self.answers, given) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(self.cases, taken, given), daemon=True)
        self.process.start()
        if not self.answers.poll(START_SECONDS):
            raise RuntimeError("a worker does not start")
        self.answers.recv()

    def outcome(self, name: str) -> Outcome:
        self.names.send(name)
        if self.answers.poll(self.limit):
            try:
                return self.answers.recv()
            except EOFError:
                pass
        ended = not self.process.is_alive()
        self.process.kill()
        self.process.join()
        self.start()
        why = "the process ended" if ended else f"took over {self.limit:g} s"
        return Outcome(name, category(self.cases[name]), "crashed" if ended else "slow", why)


def outcomes(cases: Mapping[str, Any], names: Iterable[str], limit: float) -> Iterator[Outcome]:
    worker = Worker(cases, limit)
    for name in names:
        yield worker.outcome(name)
    worker.process.kill()


def table(found: Iterable[Outcome]) -> str:
    """Cases by category: how they ended on one rank, how many of the passed had operands frozen, and how those that can be cut ended on two."""
    found = list(found)
    lines = [f"{'category':22}{'cases':>6}" + "".join(f"{s:>9}" for s in STATES) + f"{'share':>8}{'frozen':>8} | two ranks: passed of those cut"]
    for name in dict.fromkeys([TENSORS, *sorted({o.category for o in found})]):
        rows = [o for o in found if o.category == name]
        states, ranks = Counter(o.state for o in rows), Counter(o.ranks for o in rows if o.ranks)
        share = f"{100 * states['passed'] / len(rows):.1f} %" if rows else "-"
        lines.append(
            f"{name:22}{len(rows):6}" + "".join(f"{states[s]:9}" for s in STATES) + f"{share:>8}{sum(o.frozen for o in rows):8} | {ranks['passed']} of {ranks.total()}"
        )
    return "\n".join(lines)


def failures(found: Iterable[Outcome]) -> list[str]:
    one = [f"{o.name} [{o.category}] {o.state}: {o.why}" for o in found if o.state != "passed"]
    return one + [f"{o.name} on two ranks {o.ranks}: {o.ranks_why}" for o in found if o.ranks not in ("", "passed")]


def surprises(found: Iterable[Outcome]) -> list[str]:
    """Tensor programs that fail without being listed, or pass though they are, or do not pass on two ranks."""
    known = known_failures()
    tensors = [o for o in found if o.category == TENSORS]
    wrong = [f"{o.name} is not listed but {o.state}: {o.why}" for o in tensors if o.state != "passed" and o.name not in known]
    right = [f"{o.name} passes but is listed" for o in tensors if o.state == "passed" and o.name in known]
    return wrong + right + [f"{o.name} on two ranks {o.ranks}: {o.ranks_why}" for o in tensors if o.ranks not in ("", "passed")]


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="", help="cases whose name contains this")
    p.add_argument("--limit", type=float, default=20.0, help="seconds a case may take")
    p.add_argument("--json", type=Path, help="write all outcomes to this file")
    options = p.parse_args(argv)
    cases = all_cases()
    found = list(outcomes(cases, [n for n in cases if options.only in n], options.limit))
    unexpected = surprises(found)
    counts = Counter(reason for name, reason in known_failures().items() if name in {o.name for o in found})
    reasons = [f"{count:4} {reason}" for reason, count in counts.most_common()]
    print("\n".join([*failures(found), "", *reasons, "", *unexpected, table(found)]))
    if options.json:
        options.json.write_text(json.dumps([asdict(o) for o in found], indent=1) + "\n")
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main())
