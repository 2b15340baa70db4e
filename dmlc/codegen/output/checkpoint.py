"""Checkpoints that fit every plan: tensors are saved as global ones without padding, each rank writing the part it holds.

A checkpoint is written to `step-N.tmp`, synced to disk and renamed; only then the file `latest` names it. What an interrupted write leaves
behind is never read and is removed by the next run.
"""

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from runtime import local_window
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

warnings.filterwarnings("ignore", message="torch.distributed is")  # its remark that one process saves or loads alone

RECORD = "training.json"  # position, seed and what else is not a tensor


class Part(NamedTuple):
    """A rank's valid part of a global tensor, and whether this rank is the one that saves it."""

    shape: tuple
    offsets: tuple
    sizes: tuple
    owner: bool


def part_of(row, mesh):
    """The part of a table row's tensor that `mesh.rank` holds. Of ranks with equal parts the first one saves."""
    spans = [local_window(mesh, mesh.rank, n, axes, g)[:2] if axes else (0, n) for n, axes, g in zip(row["shape"], row["dims"], row["grains"])]
    used = {a for axes in row["dims"] for a in axes}
    first = all(i == 0 for a, i in mesh.coordinates(mesh.rank).items() if a not in used)
    sizes = tuple(n for _, n in spans)
    return Part(tuple(row["shape"]), tuple(s for s, _ in spans), sizes, first and 0 not in sizes)


def valid(tensor, part):
    """A view of a local tensor without its padding."""
    for d, n in enumerate(part.sizes):
        tensor = tensor.narrow(d, 0, n)
    return tensor


class Saver(dcp.DefaultSavePlanner):
    """Plans one write for every part this rank owns."""

    def __init__(self, parts):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts

    def create_local_plan(self):
        items = []
        for name, tensor in self.state_dict.items():
            part = self.parts[name]
            offsets, chunk = torch.Size(part.offsets), ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
            data = TensorWriteData(chunk=chunk, properties=TensorProperties.create_from_tensor(tensor), size=torch.Size(part.shape))
            items.append(WriteItem(index=MetadataIndex(name, offsets), type=WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item):
        return self.state_dict[write_item.index.fqn].detach().contiguous()


class Loader(dcp.DefaultLoadPlanner):
    """Reads this rank's part of every tensor, wherever its pieces lie in the checkpoint."""

    def __init__(self, parts):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.parts = parts

    def create_local_plan(self):
        items = []
        for name in self.state_dict:
            part = self.parts[name]
            chunk = ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
            if 0 not in part.sizes:
                items += create_read_items_for_chunk_list(name, self.metadata.state_dict_metadata[name], [chunk])
        return LoadPlan(items)

    def lookup_tensor(self, index):
        return valid(self.state_dict[index.fqn], self.parts[index.fqn])


# ---------------------------------------------------------------- folders


def is_complete(folder):
    return (folder / RECORD).is_file() and (folder / ".metadata").is_file()


def step_of(folder):
    return int(folder.name.removeprefix("step-"))


def complete_ones(folder):
    """Complete checkpoints by step."""
    named = [p for p in Path(folder).glob("step-*") if p.name.removeprefix("step-").isdigit()]
    return sorted((p for p in named if is_complete(p)), key=step_of)


def latest(folder):
    """The last complete checkpoint, or None."""
    pointer = Path(folder) / "latest"
    if pointer.is_file():
        named = Path(folder) / pointer.read_text().strip()
        if is_complete(named):
            return named
    return next(reversed(complete_ones(folder)), None)


def sync(path):
    """Make a file, or a folder's list of names, outlast a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path, text):
    """Replace a file at once."""
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text)
    sync(beside)
    os.replace(beside, path)
    sync(path.parent)


def restore(folder, tensors, parts, group=None):
    """Fill local `tensors` (by name) from a checkpoint, in place; what it lacks stays as it is. Returns its record and what it lacked."""
    reader = dcp.FileSystemReader(str(folder))
    saved = reader.read_metadata().state_dict_metadata
    found = {name: x for name, x in tensors.items() if name in saved}
    for name in found:
        if tuple(saved[name].size) != parts[name].shape:
            raise SystemExit(f"{folder}: {name} has shape {tuple(saved[name].size)}, the program's has {parts[name].shape}")
    dcp.load(found, storage_reader=reader, planner=Loader(parts), process_group=group, no_dist=not dist.is_initialized())
    return json.loads((Path(folder) / RECORD).read_text()), [name for name in tensors if name not in saved]


class Checkpoints:
    """Writes checkpoints under `folder`. Every rank calls every method, in the same order; `group` is a Gloo group of its own, since its
    collectives run beside the training step's."""

    def __init__(self, folder, rank, group=None, keep=3, asynchronous=True):
        self.folder, self.rank, self.group, self.keep, self.asynchronous = Path(folder), rank, group, keep, asynchronous
        self._running = None  # (future, step, record)
        self.saved = None  # the step of the last complete checkpoint of this run
        if rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in [*self.folder.glob("step-*.tmp"), *self.folder.glob("step-*.old")]:
                shutil.rmtree(left)
        if group is not None:
            dist.barrier(group)

    def save(self, step, tensors, parts, record):
        """Start writing a checkpoint of local `tensors`. They may change as soon as this returns."""
        self.wait()
        mine = {name: valid(x, parts[name]) for name, x in tensors.items() if parts[name].owner}
        target = dcp.FileSystemWriter(str(self._place(step, ".tmp")))
        options = {"storage_writer": target, "planner": Saver(parts), "process_group": self.group}
        if self.asynchronous:
            copies = {name: x.clone() if x.device.type == "cpu" else x for name, x in mine.items()}  # it makes none of what is on the host
            self._running = (dcp.async_save(copies, **options), step, record)
        else:
            dcp.save(mine, **options)
            self._running = (None, step, record)
            self._finish()

    def poll(self):
        """Finish a checkpoint whose parts are all written; never waits."""
        if self._running is not None and self._running[0].done():
            self._finish()

    def wait(self):
        """Finish the checkpoint that is being written, if there is one."""
        if self._running is not None:
            self._finish()

    def _finish(self):
        future, step, record = self._running
        if future is not None:
            future.result()
        self._running, self.saved = None, step
        if self.rank == 0:
            self._commit(step, record)

    def _commit(self, step, record):
        written, final, old = self._place(step, ".tmp"), self._place(step), self._place(step, ".old")
        write_text(written / RECORD, json.dumps(record, indent=2) + "\n")
        if final.exists():
            os.rename(final, old)
        os.rename(written, final)
        sync(self.folder)
        write_text(self.folder / "latest", final.name + "\n")
        shutil.rmtree(old, ignore_errors=True)
        for gone in sorted(complete_ones(self.folder), key=lambda p: (p / RECORD).stat().st_mtime_ns)[: -self.keep]:
            shutil.rmtree(gone)

    def _place(self, step, suffix=""):
        return self.folder / f"step-{step:06d}{suffix}"
