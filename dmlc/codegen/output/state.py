"""What a rank holds between steps: weights, buffers, optimizer state, counters; and the scalars that the command line sets."""

from pathlib import Path

import runtime
import torch
from checkpoint import part_of

HERE = Path(__file__).resolve().parent
STORED = ("param", "buffer", "const")
SAVED = ("param", "buffer", "state")


def local_shape(row, mesh):
    return tuple(runtime.local_window(mesh, mesh.rank, n, axes, g)[2] if axes else n for n, axes, g in zip(row["shape"], row["dims"], row["grains"]))


def read_part(file, name, row, mesh, device):
    """A rank's part of the stored tensor `name`, as `row` wants it."""
    source = file.get_slice(name) if row["shape"] else file.get_tensor(name)
    mine = runtime.cut(source, mesh, mesh.rank, row["shape"], row["dims"], row["grains"]).to(getattr(torch, row["dtype"]))
    return runtime.laid_out(mine.to(place_of(row, device)), row["order"])


def place_of(row, device):
    """Scalars of the step stay on the host, where they mix with any device's tensors."""
    return device if row["shape"] or row["role"] in STORED else torch.device("cpu")


def initial(rows, weights_file, mesh, device):
    """Values by name of everything the program takes besides inputs, hypers and sizes. A rank reads its own slices only."""
    from contextlib import nullcontext

    from safetensors import safe_open

    values = {}
    with safe_open(str(HERE / weights_file), framework="pt") if weights_file else nullcontext() as file:
        for row in rows:
            if row["role"] in STORED:
                values[row["name"]] = read_part(file, row["name"], row, mesh, device)
            elif row["role"] == "state" and row["init"] == "param":
                values[row["name"]] = read_part(file, row["of"], row, mesh, device)
            elif row["role"] == "state":
                dtype = getattr(torch, row["dtype"])
                values[row["name"]] = runtime.laid_out(torch.full(local_shape(row, mesh), row["init"], dtype=dtype, device=place_of(row, device)), row["order"])
    return values


class State:
    """`values`: a rank's tensors by name, as the program takes them."""

    def __init__(self, table, mesh, device):
        self.rows = {a["name"]: a for a in table.ARGUMENTS if a["role"] != "input"}
        self.results = table.RESULTS
        self.small_batch = table.TRAIN.get("micro_samples")  # samples behind each of the gradients that the result micro_grad_norm is of
        self.mesh, self.device = mesh, device
        self.values = initial(self.rows.values(), table.WEIGHTS, mesh, device)
        self.parts = {name: part_of(row, mesh) for name, row in self.rows.items() if row["role"] in SAVED}

    def set(self, **scalars):
        """Hypers, sizes and the seed, where the program takes them."""
        for name, value in scalars.items():
            if name in self.rows:
                self.values[name] = torch.tensor(value, dtype=getattr(torch, self.rows[name]["dtype"]))

    def update(self, results):
        """Take over a step's results; returns those that are reported, by name."""
        reported = {}
        for row, x in zip(self.results, results):
            name = row["updates"]
            if name is None:
                reported[row["name"]] = x
            else:
                self.values[name] = x.to(place_of(self.rows[name], self.device))
        return reported

    def saved(self):
        return {name: self.values[name] for name in self.parts}

    def borrowed(self, **scalars):
        """The values for a run whose updates are dropped: copies of what a program replaces, since it may write into old tensors."""
        copies = {row["updates"]: self.values[row["updates"]].clone() for row in self.results if row["updates"] is not None}
        return {**self.values, **copies, **{name: torch.tensor(x, dtype=self.values[name].dtype) for name, x in scalars.items()}}

    def exported(self):
        """(names in the model, global tensor) for each weight and buffer; the tensors on rank 0 alone, one after the other. A master copy of
        higher precision stands for its parameter. All ranks call this together."""
        masters = {row["of"]: name for name, row in self.rows.items() if row.get("slot") == "master"}
        wholes = {}
        for name, row in self.rows.items():
            if row["role"] not in ("param", "buffer"):
                continue
            held = masters.get(name, name)
            r = self.rows[held]
            tensor = runtime.gather_result(self.values[held], self.mesh, r["shape"], r["dims"], r["grains"], r.get("stage"))
            if not row.get("part"):
                yield row["names"] or (name,), tensor
            elif tensor is not None:
                put_part(wholes, row["part"], tensor)
        yield from wholes.items()


def put_part(wholes, part, tensor):
    """A weight that the program holds in parts (one projection of a fused q|k|v), put where it belongs in the whole."""
    whole = wholes.setdefault(part["names"], torch.empty(part["shape"], dtype=tensor.dtype))
    place = whole.view(part["split"]).narrow(part["dim"], part["start"], part["stop"] - part["start"])
    place.copy_(tensor.reshape(place.shape))


class Evaluation:
    """The evaluation program on a training state."""

    def __init__(self, table, program, state):
        self.rows = {a["name"]: a for a in table.ARGUMENTS if a["role"] != "input"}
        self.results, self.program, self.state = table.RESULTS, program, state
        missing = [row for name, row in self.rows.items() if name not in state.values and row["role"] in STORED]
        untrained = [row["name"] for row in missing if row["role"] in ("param", "buffer")]
        if untrained:
            raise SystemExit(f"the evaluation program has weights that the training program has not: {', '.join(untrained)}")
        self.extra = initial(missing, table.WEIGHTS, state.mesh, state.device)

    def values(self):
        """What the program takes now: the state's tensors, laid out as this program wants them."""
        found = dict(self.extra)
        for name, row in self.rows.items():
            if name in self.state.values and name not in found:
                x, trained = self.state.values[name], self.state.rows[name]
                found[name] = x if row["order"] == trained["order"] else runtime.laid_out(x.contiguous(), row["order"])
        return found

    def run(self, batches, guard):
        """Sums over all batches by result name."""
        values, totals = self.values(), {}
        for number, batch in enumerate(batches, 1):
            guard.progress(f"in batch {number} of the evaluation")
            for name, value in (("batch_size", batch.valid), ("microbatches", batch.microbatches)):
                if name in self.rows:
                    values[name] = torch.tensor(value, dtype=getattr(torch, self.rows[name]["dtype"]))
            results = self.program(values, {name: x.to(self.state.device) for name, x in batch.inputs.items()})
            for row, x in zip(self.results, results):
                totals[row["name"]] = totals.get(row["name"], 0.0) + float(x)
        return totals
