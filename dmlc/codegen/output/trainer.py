"""The training loop of one rank."""

import time

from data import Feed, Position
from metrics import NoiseScale
from schedule import learning_rate
from timing import WARM


class Trainer:
    """Runs steps from `position` until `total`. All ranks go through the same steps in the same order."""

    def __init__(self, args, program, state, source, total, guard, metrics, checkpoints=None, evaluate=None):
        self.args, self.program, self.state, self.source, self.total = args, program, state, source, total
        self.guard, self.metrics, self.checkpoints, self.evaluate = guard, metrics, checkpoints, evaluate
        self.step, self.position, self.noise = 0, Position(0, 0), NoiseScale()
        self.samples, self.seconds = 0, 0.0  # of this run
        self.began, self.programs = 0.0, []  # when the last step's program began; seconds of each until its loss was known
        self.small = state.small_batch
        self.state.set(rng_seed=args.seed, weight_decay=args.weight_decay, max_norm=args.max_norm)

    # -------------------------------------------------- checkpoints

    def record(self):
        """What a checkpoint holds besides tensors."""
        return {
            "step": self.step,
            "epoch": self.position.epoch,
            "samples": self.position.samples,
            "seed": self.args.seed,
            "noise": self.noise.state,
        }

    def resume(self, record):
        self.step, self.position = record["step"], Position(record["epoch"], record["samples"])
        self.noise = NoiseScale(state=record["noise"])

    def save(self):
        self.guard.progress(f"writing the checkpoint of step {self.step}")
        self.checkpoints.save(self.step, self.state.saved(), self.state.parts, self.record())

    # -------------------------------------------------- steps

    def run(self):
        """Train to the end or to a stop that a signal asks for; returns whether it was stopped."""
        if self.step >= self.total:
            return False
        feed = Feed(self.source, self.position)
        try:
            return self._steps(feed)
        finally:
            feed.close()

    def _steps(self, feed):
        stopped = False
        while self.step < self.total and not stopped:
            self.guard.progress(f"in step {self.step + 1}")
            begin = time.perf_counter()
            results, record = self._one(feed.next())
            self.guard.begin_beating()
            flag = self.guard.ask_stop()
            self._report(results, record, begin)
            if self.checkpoints is not None:
                self.checkpoints.poll()
            stopped = flag.agreed()
            self._between(stopped)
        return stopped and self.step < self.total

    def _one(self, batch):
        """One step; its results and what is known of it without them."""
        args = self.args
        rate = learning_rate(self.step, args.lr, args.schedule, args.warmup, self.total, args.final_lr)
        self.state.set(lr=rate, batch_size=batch.valid, microbatches=batch.microbatches)
        inputs = {name: x.to(self.state.device) for name, x in batch.inputs.items()}
        small = self._measure(batch, inputs) if args.noise_every and self.step % args.noise_every == 0 else None
        self.began = time.perf_counter()
        results = self.state.update(self.program(self.state.values, inputs))
        self.step, self.position = self.step + 1, batch.after
        return results, {"step": self.step, "lr": rate, "samples": batch.valid, "small": small, "epoch": batch.after.epoch}

    def _report(self, results, record, begin):
        loss, small = float(results["loss"]), record.pop("small")  # waits for the device
        self.programs.append(time.perf_counter() - self.began)
        record = {"step": record.pop("step"), "loss": loss, **record}
        record.update({name: float(results[name]) for name in ("grad_norm",) if name in results})
        if "overflow" in results:
            record["overflow"] = bool(results["overflow"])
        record["seconds"] = time.perf_counter() - begin
        self.seconds += record["seconds"]
        self.samples += record["samples"]
        if self.small and "micro_grad_norm" in results:
            small = (self.small, float(results["micro_grad_norm"]))
        if small is not None:
            self.noise.add(*small, record["samples"], record["grad_norm"])
        if self.noise.value is not None:
            record["noise_scale"] = self.noise.value
        self.metrics.step(record, self.total)

    def times(self):
        """Seconds of this run's steps, without the first ones where there are more."""
        return getattr(self.program, "plain_seconds", None) or self.programs[min(WARM, len(self.programs) - 1) :]

    def _between(self, stopped):
        """After a step: the evaluation and the checkpoint that are due."""
        args, last = self.args, self.step == self.total or stopped
        if self.evaluate is not None and not stopped and (last or (args.eval_every and self.step % args.eval_every == 0)):
            self.evaluate(self.step)
        if self.checkpoints is not None and (last or (args.checkpoint_every and self.step % args.checkpoint_every == 0)):
            self.save()
            if last:
                self.checkpoints.wait()

    def _measure(self, batch, inputs):
        """(samples, gradient norm) of a part of the batch, by a run of the step whose updates are dropped."""
        width = self.source.layout.width
        valid = min(width, batch.valid) if batch.microbatches > 1 else batch.valid // 2
        if not 0 < valid < batch.valid:
            return None
        micro = {row["name"] for row in self.source.layout.rows if row["micro"]}
        part = {name: x[:1].clone() if name in micro else x for name, x in inputs.items()}
        results = self.program(self.state.borrowed(batch_size=valid, microbatches=1), part)
        at = [row["name"] for row in self.state.results].index("grad_norm")
        return valid, float(results[at])
