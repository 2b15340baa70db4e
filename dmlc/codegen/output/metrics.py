"""Progress lines, the log of steps, and the gradient-noise scale."""

import json
import math
import os
from pathlib import Path


class NoiseScale:
    """The simple noise scale tr(S) / |G|^2 of McCandlish et al. 2018 (An empirical model of large-batch training, appendix A.1): about the
    number of samples beyond which a larger batch is of little use. From the gradient norms of a small and a large batch come unbiased
    estimates of tr(S) and |G|^2, each averaged over time, since their quotient alone would be biased."""

    def __init__(self, decay=0.95, state=None):
        self.decay = decay
        self.trace, self.square, self.weight = state or (0.0, 0.0, 0.0)

    def add(self, small, small_norm, large, large_norm):
        """Batch sizes and gradient norms (root mean squares where there are several small batches)."""
        if small >= large or not math.isfinite(small_norm) or not math.isfinite(large_norm):
            return
        square = (large * large_norm**2 - small * small_norm**2) / (large - small)
        trace = (small_norm**2 - large_norm**2) / (1 / small - 1 / large)
        self.trace = self.decay * self.trace + (1 - self.decay) * trace
        self.square = self.decay * self.square + (1 - self.decay) * square
        self.weight = self.decay * self.weight + (1 - self.decay)

    @property
    def value(self):
        """Samples; None before the first estimate and while noise drowns one of the two."""
        return self.trace / self.square if self.weight and self.square > 0 and self.trace > 0 else None

    @property
    def state(self):
        return [self.trace, self.square, self.weight]


class Metrics:
    """Rank 0's reports; the other ranks hold one that says nothing."""

    def __init__(self, speaks, log=None, every=10, resumed=0):
        self.speaks, self.every = speaks, every
        self.file = self._open(Path(log), resumed) if speaks and log else None

    @staticmethod
    def _open(path, resumed):
        """The log, without steps after the checkpoint from which the run goes on."""
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if resumed and path.is_file():
            kept = [line for line in path.read_text().splitlines() if _step(line) <= resumed]
        beside = path.with_name(path.name + ".tmp")
        beside.write_text("".join(line + "\n" for line in kept))
        os.replace(beside, path)
        return path.open("a", buffering=1)

    def say(self, text):
        if self.speaks:
            print(text, flush=True)

    def step(self, record, total):
        """`record`: step (counted from 1), loss, lr, grad_norm, samples, seconds, and what else is known of the step."""
        self.log(record)
        if self.speaks and (record["step"] % self.every == 0 or record["step"] in (1, total)):
            self.say(line(record, total))

    def log(self, record):
        if self.file is not None:
            self.file.write(json.dumps({k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in record.items()}) + "\n")

    def close(self):
        if self.file is not None:
            self.file.close()


def _step(line):
    """The step of a line of the log; one that was cut off has none."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return math.inf


def line(record, total):
    seconds = record["seconds"]
    text = f"step {record['step']}/{total}  loss {record['loss']:.5g}  lr {record['lr']:.4g}"
    if "grad_norm" in record:
        text += f"  grad norm {record['grad_norm']:.4g}"
    text += f"  {record['samples'] / seconds if seconds else math.inf:.4g} samples/s  {seconds:.3g} s"
    if record.get("noise_scale") is not None:
        text += f"  noise scale {record['noise_scale']:.4g}"
    return text + ("  overflow: step skipped" if record.get("overflow") else "")
