"""Keeps the ranks of a job together: an agreed clean stop, and an end for all of them when one is lost or hangs.

Gloo tells a rank at once when a peer it talks to is gone; NCCL does not, and neither notices a process that only stands still. So a thread
of each rank beats in the job's store and watches the next rank's beat.
"""

import os
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

AGENT = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun keeps the store of the job, not rank 0
FIRST = os.environ.get("LOCAL_RANK", "0") == "0"  # of this machine's ranks
INTERVAL = 1.0  # seconds between beats
SILENCE = 15.0  # seconds without a beat after which a rank counts as lost
LOST = ("gloo", "nccl", "connection", "peer", "timed out", "timeout", "socket", "broken pipe")


class Guard:
    """`group`: a Gloo group of all ranks for the stop flag. `where` says in messages what was going on."""

    def __init__(self, rank, world, timeout, stop_files=()):
        self.rank, self.world, self.timeout = rank, world, timeout
        self.stop_files = [f for f in stop_files if f]
        self.where = "starting"
        self.hint = ""
        self.signal = None
        self.group = None
        self.beating = False  # from the first finished step on: what a program starts with may hold Python's lock for long
        self._progress = time.monotonic()
        self._closed = threading.Event()
        self._store, self._kept = None, False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    # -------------------------------------------------- clean stop

    def _on_signal(self, number, _frame):
        self.signal = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process

    def ask_stop(self):
        """Start to agree whether to stop; the answer's `agreed` is the same on all ranks."""
        asked = self.signal is not None or (FIRST and any(os.path.exists(f) for f in self.stop_files))
        flag = torch.tensor([int(asked)])
        return StopFlag(flag, dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.group, async_op=True) if self.group is not None else None)

    def clear_stop(self):
        """Remove the stop files, so that the next run goes on."""
        for f in self.stop_files:
            if FIRST:
                Path(f).unlink(missing_ok=True)

    # -------------------------------------------------- loss of ranks

    def store(self, limit):
        """A client of the job's store, kept by torchrun or else by rank 0. Keys of each start of the job stand apart: torchrun keeps its store
        over restarts, and a rank must not find there where a rank of the start before was to be reached."""
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        keeps = self.rank == 0 and not AGENT and not self._kept
        self._kept = True
        client = dist.TCPStore(*place, None, is_master=keeps, timeout=limit, wait_for_workers=False, multi_tenant=keeps)
        return dist.PrefixStore(f"dmlc/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", client)

    def start(self, group):
        """Watch the others from now on. Call it when the process group exists."""
        self.group = group
        if self.world > 1:
            self._store = self.store(timedelta(seconds=SILENCE))
        threading.Thread(target=self._watch, name="guard", daemon=True).start()

    def progress(self, where):
        """The main thread is alive and begins `where`."""
        self._progress, self.where = time.monotonic(), where

    def begin_beating(self):
        """From now on silence means a loss."""
        if not self.beating and self._store is not None:
            self._store.add(f"beat/{self.rank}", 1)
        self.beating = True

    def close(self):
        self._closed.set()

    def _watch(self):
        seen, since = -1, time.monotonic()
        while not self._closed.wait(INTERVAL):
            if time.monotonic() - self._progress > self.timeout + 10:
                self.end(f"nothing happened for {self.timeout:.0f} s")
            if self._store is None:
                continue
            try:
                failed, beats = self._beat()
            except RuntimeError as error:
                self.end_unless_closed(f"the store of the job is gone ({first_line(error)})")
                return
            if failed:
                self.leave()
            if beats != seen or beats == 0:
                seen, since = beats, time.monotonic()
            elif time.monotonic() - since > SILENCE:
                self.end(f"rank {(self.rank + 1) % self.world} has given no sign of life for {SILENCE:.0f} s")

    def _beat(self):
        """Whether a rank has reported a failure, and the next rank's beats."""
        self._store.add(f"beat/{self.rank}", int(self.beating))
        return self._store.add("failed", 0), self._store.add(f"beat/{(self.rank + 1) % self.world}", 0)

    def end_unless_closed(self, reason):
        if not self._closed.wait(2 * INTERVAL):
            self.end(reason)

    def end(self, reason):
        """End this process and have the others end too; the first one to do so says why."""
        if self._is_first():
            print(f"rank {self.rank}: {reason}, {self.where}; all ranks end. {self.hint}".rstrip(), file=sys.stderr, flush=True)
        self.leave()

    def leave(self, status=1):
        """End this process without waiting for threads and groups that may hang. Where rank 0 keeps the store, it stays until the others had
        time to see there that the job failed."""
        if self._store is not None and self.rank == 0 and not AGENT:
            time.sleep(2.5 * INTERVAL)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _is_first(self):
        if self._store is None:
            return True
        try:
            return self._store.add("failed", 1) == 1
        except RuntimeError:
            return True  # the store went with rank 0

    def failed(self, error):
        """The main thread got an exception: say it once for the job and end."""
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            self.leave(error.code or 0)
        if self._is_first():
            if isinstance(error, SystemExit):
                print(error.code, file=sys.stderr, flush=True)
            elif self.world > 1 and is_loss(error):
                reason = f"another rank is gone or stands still ({first_line(error)})"
                print(f"rank {self.rank}: {reason}, {self.where}; all ranks end. {self.hint}".rstrip(), file=sys.stderr, flush=True)
            else:
                traceback.print_exception(error)
                print(f"rank {self.rank}: failed {self.where}; all ranks end. {self.hint}".rstrip(), file=sys.stderr, flush=True)
        self.leave()


class StopFlag:
    def __init__(self, flag, work):
        self._flag, self._work = flag, work

    def agreed(self):
        if self._work is not None:
            self._work.wait()
        return bool(self._flag)


def first_line(error):
    text = str(error).strip() or type(error).__name__
    line = text.splitlines()[0]
    return line if len(line) <= 160 else line[:157] + "..."


def is_loss(error):
    """Whether an exception says that a peer is lost, rather than that this rank did something wrong."""
    if isinstance(error, torch.distributed.DistError):
        return True
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, RuntimeError | ConnectionError | CheckpointException) and any(word in text for word in LOST)
