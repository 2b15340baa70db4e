"""Data of a training program: which samples a step has, and a rank's rows of them.

The order of samples depends on the seed and the epoch alone, never on the plan, and a rank loads only its own rows: row j of microbatch i
on the rank with index r along the data axes is sample (i * dp + r) * m + j of the batch. Rows past the last sample repeat a real one; the
program masks them by `batch_size`.
"""

import importlib
import importlib.util
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from runtime import local_window, pad_to
from torch.utils.data import IterableDataset


class Position(NamedTuple):
    """Epoch, and samples of it that are done."""

    epoch: int
    samples: int


class Batch(NamedTuple):
    inputs: dict  # a rank's inputs by name, [microbatches, rows, ...]
    valid: int  # samples over all ranks
    microbatches: int
    after: Position


def load_function(text):
    """The function that `module:function` or `file.py:function` names; a module of the current folder is found first."""
    place, _, name = text.rpartition(":")
    if not place:
        raise SystemExit(f"{text}: give module:function or file.py:function")
    path = Path(place) if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    if path.is_file():
        sys.path.insert(1, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(f"user_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    elif place.endswith(".py"):
        raise SystemExit(f"{text}: there is no file {path}")
    else:
        module = importlib.import_module(place)
    if not callable(getattr(module, name, None)):
        raise SystemExit(f"{text}: {place} has no function {name}")
    return getattr(module, name)


def load_dataset(text):
    """What the function gives; where that is an iterator, every epoch calls the function again."""
    function = load_function(text)
    dataset = function()
    return Recalled(function, dataset) if hasattr(dataset, "__next__") else dataset


class Recalled:
    """An iterable from a function that gives an iterator."""

    def __init__(self, function, first):
        self.function, self.first = function, first

    def __iter__(self):
        found, self.first = self.first if self.first is not None else self.function(), None
        return found


class Synthetic:
    """Seeded random samples that fit the inputs of a table."""

    def __init__(self, rows, length, seed):
        self.rows, self.length, self.seed = rows, length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        return {row["name"]: self._draw(row, generator) for row in self.rows}

    @staticmethod
    def _draw(row, generator):
        shape, dtype = sample_shape(row), getattr(torch, row["dtype"])
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        low, high = row["range"] or (0, 2)
        return torch.randint(low, high, shape, generator=generator).to(dtype)


def sample_shape(row):
    """Shape of one sample: an input's without the dims of microbatches and rows."""
    shape = list(row["shape"])
    if row["micro"]:
        del shape[row["batch_dim"] + 1]
        del shape[0]
    return tuple(shape)


def input_rows(table):
    """Rows of the inputs in the order of a sample that is a tuple: the target last."""
    target = (table.TRAIN or {}).get("target")
    rows = [a for a in table.ARGUMENTS if a["role"] == "input"]
    return [r for r in rows if r["name"] != target] + [r for r in rows if r["name"] == target]


class Layout:
    """Which rows of a batch a rank holds, and the tensors its program takes."""

    def __init__(self, rows, mesh):
        self.rows, self.mesh = rows, mesh
        first = next((r for r in rows if r["micro"]), None)
        if first is None:
            raise SystemExit("no input of this program has a batch dim")
        d = first["batch_dim"] + 1
        self.width = first["shape"][d]  # samples of a microbatch over all ranks
        self.microbatches = first["shape"][0]
        self.start, _, self.count = local_window(mesh, mesh.rank, self.width, first["dims"][d], first["grains"][d])

    def samples(self, microbatches, valid):
        """Index in the batch for each of a rank's rows; a row past the end repeats the rank's last sample, or the batch's first."""
        found = []
        for i in range(microbatches):
            for place in range(self.start, self.start + self.count):
                here = i * self.width + place
                real = place < self.width and here < valid
                found.append(here if real else found[-1] if found else 0)
        return found

    def needed(self, microbatches, valid):
        """The samples to load, in order."""
        return sorted(set(self.samples(microbatches, valid)))

    def tensors(self, loaded, microbatches, valid):
        """Inputs by name from `loaded`: index in the batch -> sample."""
        at = {index: i for i, index in enumerate(loaded)}
        samples = [as_dict(s, self.rows) for s in loaded.values()]
        pick = torch.tensor([at[i] for i in self.samples(microbatches, valid)])
        return {row["name"]: self._tensor(row, samples, pick, microbatches) for row in self.rows}

    def _tensor(self, row, samples, pick, microbatches):
        values = [as_tensor(s[row["name"]], row) for s in (samples if row["micro"] else samples[:1])]
        if not row["micro"]:
            return self._cut(values[0], row, range(len(row["shape"])))
        d = row["batch_dim"] + 1
        x = torch.stack(values)[pick].reshape(microbatches, self.count, *values[0].shape).movedim(1, d)
        return self._cut(x, row, [i for i in range(1, len(row["shape"])) if i != d])

    def _cut(self, x, row, dims):
        """A rank's part along dims other than the batch's."""
        for d in dims:
            if row["dims"][d]:
                start, valid, size = local_window(self.mesh, self.mesh.rank, row["shape"][d], row["dims"][d], row["grains"][d])
                x = pad_to(x.narrow(d, min(start, x.shape[d]), valid), d, size)
        return x.contiguous()


def as_dict(sample, rows):
    if isinstance(sample, dict):
        missing = [r["name"] for r in rows if r["name"] not in sample]
        if missing:
            raise SystemExit(f"a sample lacks {', '.join(missing)}; it has {', '.join(map(str, sample))}")
        return sample
    if not isinstance(sample, tuple | list):
        sample = (sample,)
    if len(sample) != len(rows):
        raise SystemExit(f"a sample has {len(sample)} values; the program takes {len(rows)}: {', '.join(r['name'] for r in rows)}")
    return {r["name"]: value for r, value in zip(rows, sample)}


def as_tensor(value, row):
    x = torch.as_tensor(value).to(getattr(torch, row["dtype"]))
    if tuple(x.shape) != sample_shape(row):
        raise SystemExit(f"{row['name']} of a sample has shape {tuple(x.shape)}; the program is compiled for {sample_shape(row)}")
    return x


def epoch_order(length, epoch, seed, shuffle):
    """The order of an epoch's samples."""
    if not shuffle:
        return torch.arange(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63))


class Source:
    """A dataset as batches of (samples by index in the batch, number of valid samples)."""

    def __init__(self, dataset, layout, batch, microbatches, seed=0, shuffle=False, drop_last=False, threads=1):
        self.dataset, self.layout, self.batch, self.microbatches = dataset, layout, batch, microbatches
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.length = len(dataset) if hasattr(dataset, "__len__") else None
        self.mapped = self.length is not None and hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset)
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="samples") if threads > 1 else None
        if self.steps_an_epoch == 0:
            raise SystemExit(f"the dataset has {self.length} samples: no batch of {batch}")

    @property
    def steps_an_epoch(self):
        """None where the dataset does not tell its length."""
        if self.length is None:
            return None
        return self.length // self.batch if self.drop_last else -(-self.length // self.batch)

    def epoch(self, number, done=0):
        """The batches of an epoch after its first `done` samples."""
        pieces = self._mapped(number, done) if self.mapped else self._streamed(number, done)
        for loaded, valid in pieces:
            done += valid
            yield Batch(self.layout.tensors(loaded, self.microbatches, valid), valid, self.microbatches, Position(number, done))

    def _mapped(self, number, done):
        order = epoch_order(self.length, number, self.seed, self.shuffle)
        end = self.length - self.length % self.batch if self.drop_last else self.length
        for start in range(done, end, self.batch):
            valid = min(self.batch, end - start)
            needed = self.layout.needed(self.microbatches, valid)
            places = order[start : start + valid][needed].tolist()
            yield dict(zip(needed, self._load(places))), valid

    def _load(self, places):
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:
            return several(places)
        return list(self.pool.map(self.dataset.__getitem__, places)) if self.pool is not None else [self.dataset[i] for i in places]

    def _streamed(self, number, done):
        """Every rank reads the whole stream and keeps its rows."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(number)
        stream = itertools.islice(iter(self.dataset), done, None)
        wanted = set(self.layout.needed(self.microbatches, self.batch)) | {0}
        while True:
            kept, valid = {}, 0
            for valid, sample in enumerate(itertools.islice(stream, self.batch), 1):
                if valid - 1 in wanted:
                    kept[valid - 1] = sample
            if valid == 0 or (valid < self.batch and self.drop_last):
                return
            yield kept, valid


class Feed:
    """Batches of epoch after epoch from a position; the next one is made while the step runs."""

    def __init__(self, source, position):
        self._batches = self._endless(source, position)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._next = self._worker.submit(next, self._batches)

    @staticmethod
    def _endless(source, position):
        for epoch in itertools.count(position.epoch):
            empty = True
            for batch in source.epoch(epoch, position.samples if epoch == position.epoch else 0):
                empty = False
                yield batch
            if empty and (epoch > position.epoch or not position.samples):
                raise SystemExit("the dataset gives no samples")

    def next(self):
        batch = self._next.result()
        self._next = self._worker.submit(next, self._batches)
        return batch

    def close(self):
        self._worker.shutdown(cancel_futures=True)
