"""Trains the compiled model; see `launch.py --help`. Sets up a rank and ends it in order."""

import hashlib
import os
import sys
from datetime import timedelta
from pathlib import Path

import settings
from start import start_ranks

HERE = Path(__file__).resolve().parent


def main(arguments=None):
    import table

    arguments = sys.argv[1:] if arguments is None else arguments
    args = settings.parse(arguments, table.TRAIN)
    settings.apply_environment(args)
    if "RANK" not in os.environ:
        if table.RANKS > 1 and not args.alone:
            return start_ranks(table.RANKS, arguments)
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    world = int(os.environ["WORLD_SIZE"])
    if world != (1 if args.alone else table.RANKS):
        print(f"this program is compiled for {table.RANKS} ranks, but {world} were started", file=sys.stderr)
        return 2
    return run_rank(args, int(os.environ["RANK"]), world)


def run_rank(args, rank, world):
    """One rank from start to end. Whatever goes wrong ends all ranks with one message."""
    from guard import Guard

    stop_file = os.path.join(args.checkpoint_dir, "stop") if args.checkpoint_dir else None
    guard = Guard(rank, world, args.timeout, (os.environ.get("DMLC_STOP_FILE"), stop_file))
    try:
        status = train(args, guard)
        finish(guard)
    except BaseException as error:
        guard.failed(error)
    return status


def finish(guard):
    """Leave together, so that no rank takes another's normal end for a loss."""
    import torch.distributed as dist

    if guard.group is not None:
        dist.barrier(guard.group)
    guard.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def connect(args, guard, device):
    """Process groups: the default one for the program, one for the stop flag, one for checkpoints. Starts the guard."""
    import torch.distributed as dist

    limit = timedelta(seconds=args.timeout)
    groups = (None, None)
    if guard.world > 1:
        kind = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(kind, store=guard.store(limit), rank=guard.rank, world_size=guard.world, timeout=limit)
        groups = tuple(dist.new_group(backend="gloo", timeout=limit) for _ in range(2))
    guard.start(groups[0])
    return groups[1]


def train(args, guard):
    import launch
    import model
    import runtime
    import table
    import torch
    from metrics import Metrics
    from state import State
    from trainer import Trainer

    device = launch.choose_device(args)
    if args.kernels == "triton" and device.type != "cuda":
        raise SystemExit(launch.NO_GPU)
    if args.deterministic:
        torch.use_deterministic_algorithms(True)
    saving = connect(args, guard, device)
    if args.alone:
        launch.play_alone(device)
    mesh = runtime.Mesh(table.MESH)
    compare_ranks(args, mesh, table)
    with torch.no_grad():
        state = State(table, mesh, device)
        if args.max_norm != float("inf") and "max_norm" not in state.rows:
            raise SystemExit("this program never clips gradients (it was compiled with --no-clip): leave out --max-norm")
        if args.noise_every and "grad_norm" not in [row["name"] for row in state.results]:
            raise SystemExit("this program computes no gradient norm (it was compiled with --no-clip): leave out --noise-every")
        record = restore(args, state, saving)
        source, total = training_data(args, table, mesh)
        metrics = Metrics(guard.rank == 0, args.log, args.log_every, record["step"] if record else 0)
        evaluate = evaluation(args, mesh, device, state, guard, metrics)
        program = launch.profiled(args, model.Program(mesh, device), mesh, device, metrics.say)
        trainer = Trainer(args, program, state, source, total, guard, metrics, checkpoints(args, guard, saving), evaluate)
        if record:
            trainer.resume(record)
        introduce(args, metrics, table, source, trainer, record)
        stopped = trainer.run()
        conclude(args, metrics, guard, trainer, stopped, device, table.TRAIN)
        export(args, state, metrics, guard)
    metrics.close()
    return 0


def compare_ranks(args, mesh, table):
    """Before the first step: all ranks have the same program, initial weights and options."""
    import launch

    launch.same_program(mesh)
    more = [HERE / name for name in ("table.py", "evaluation.py", "evaluation_table.py", "kernels.py", "evaluation_kernels.py")]
    launch.same_everywhere(mesh, b"".join(p.read_bytes() for p in more if p.exists()), "the ranks hold different programs (their tables differ)")
    launch.same_everywhere(mesh, fingerprint(HERE / table.WEIGHTS) if table.WEIGHTS else b"", "the ranks hold different initial weights")
    launch.same_everywhere(mesh, repr(sorted(vars(args).items())).encode(), "the ranks were started with different options")


def fingerprint(path, piece=1 << 20):
    """Size and hash of a file's beginning, middle and end: weights may be too large to read whole on every rank."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for start in (0, size // 2, max(size - piece, 0)):
            file.seek(start)
            found.update(file.read(piece))
    return found.digest()


# ---------------------------------------------------------------- parts of a run


def restore(args, state, group):
    """Take over a checkpoint where one is asked for and there; its record or None. Decides the seed."""
    from checkpoint import is_complete, latest
    from checkpoint import restore as read

    folder = None
    if args.resume:
        folder = latest(args.checkpoint_dir if args.resume == "auto" else args.resume) or Path(args.resume)
    if folder is None or (args.resume == "auto" and not is_complete(folder)):
        args.seed = args.seed or 0
        return None
    if not is_complete(folder):
        raise SystemExit(f"{folder} holds no complete checkpoint")
    record, lacking = read(folder, state.saved(), state.parts, group)
    lost = [name for name in lacking if state.rows[name]["role"] != "state"]
    if lost:
        raise SystemExit(f"{folder} is of another model: it lacks {', '.join(lost[:5])}{' ...' if len(lost) > 5 else ''}")
    args.seed = record["seed"] if args.seed is None else args.seed
    return {**record, "folder": str(folder), "lacking": lacking}


def sizes(args, layout, batch):
    """(samples a step, microbatches) from the command line, else as compiled."""
    if args.batch is None:
        batch = batch if args.microbatches is None else layout.width * args.microbatches
    else:
        batch = args.batch
    count = args.microbatches or -(-batch // layout.width)
    if batch > count * layout.width:
        raise SystemExit(f"--batch {batch} does not fit {count} microbatches of {layout.width} samples; give --microbatches {-(-batch // layout.width)}")
    return batch, count


def full_batches_only(table, layout, batch, count):
    """Whether the program takes no ragged batch (it mixes the samples of a batch). Ends on sizes that it cannot take."""
    names = {a["name"] for a in table.ARGUMENTS}
    if "microbatches" not in names and count != layout.microbatches:
        raise SystemExit(f"this program takes {layout.microbatches} microbatch(es), not {count}: it mixes the samples of a batch")
    if "batch_size" not in names and batch != count * layout.width:
        raise SystemExit(f"this program takes batches of {count * layout.width} samples, not {batch}: it mixes the samples of a batch")
    return "batch_size" not in names


def training_data(args, table, mesh):
    """The batches to train on and the number of steps in all."""
    import timing
    from data import Layout, Source, Synthetic, input_rows, load_dataset

    rows = input_rows(table)
    layout = Layout(rows, mesh)
    batch, count = sizes(args, layout, table.TRAIN["batch"])
    dataset = load_dataset(args.data) if args.data else Synthetic(rows, 8 * batch, args.seed)
    full = full_batches_only(table, layout, batch, count)
    source = Source(dataset, layout, batch, count, args.seed, args.shuffle, args.drop_last or full, args.load_threads)
    if args.profile and args.steps is None and not args.data:
        return source, timing.needed(args.profile)
    if args.steps is not None:
        return source, args.steps
    if args.epochs is None and not args.data:
        return source, 20
    if source.steps_an_epoch is None:
        raise SystemExit("the dataset does not tell its length: give --steps")
    return source, round(source.steps_an_epoch * (1 if args.epochs is None else args.epochs))


def checkpoints(args, guard, group):
    if not args.checkpoint_dir:
        return None
    from checkpoint import Checkpoints

    guard.hint = f"Go on with --resume auto --checkpoint-dir {args.checkpoint_dir}"
    return Checkpoints(args.checkpoint_dir, guard.rank, group, args.keep, not args.sync_checkpoint)


def evaluation(args, mesh, device, state, guard, metrics):
    """A function that evaluates the state and reports, or None."""
    if not args.eval_data:
        return None
    if not (HERE / "evaluation.py").exists():
        raise SystemExit("this folder has no evaluation program")
    import evaluation as program
    import evaluation_table as table
    from data import Layout, Source, input_rows, load_dataset
    from state import Evaluation

    layout = Layout(input_rows(table), mesh)
    full = full_batches_only(table, layout, layout.width * layout.microbatches, layout.microbatches)
    source = Source(load_dataset(args.eval_data), layout, layout.width * layout.microbatches, layout.microbatches, drop_last=full, threads=args.load_threads)
    if full and source.length is not None and source.length % source.batch:
        metrics.say(f"the evaluation leaves out the last {source.length % source.batch} sample(s): the program takes full batches only")
    runner = Evaluation(table, program.Program(mesh, device), state)

    def evaluate(step):
        sums = runner.run(source.epoch(0), guard)
        found = {"eval_loss": sums["loss_sum"] / max(sums["count"], 1)}
        if "correct" in sums:
            found["accuracy"] = sums["correct"] / max(sums["count"], 1)
        metrics.log({"step": step, **found})
        metrics.say(f"step {step}: evaluation " + "  ".join(f"{name.removeprefix('eval_')} {value:.5g}" for name, value in found.items()))

    return evaluate


def introduce(args, metrics, table, source, trainer, record):
    t = table.TRAIN
    metrics.say(
        f"{t.get('model', 'model')}: loss {t['loss'] or 'of the model'}, {t['optimizer']}, {table.RANKS} rank(s), {t.get('plan') or 'one rank'}; "
        f"{source.batch} samples a step in {source.microbatches} microbatch(es), {trainer.total} steps, seed {args.seed}"
        + ("" if args.data else ", synthetic data")
    )
    if record:
        metrics.say(f"goes on from {record['folder']}" + (f"; new: {', '.join(record['lacking'])}" if record["lacking"] else ""))


def conclude(args, metrics, guard, trainer, stopped, device, trained):
    from timeline import say_step

    samples = trainer.samples
    guard.clear_stop()
    if stopped:
        why = f"on {guard.signal}" if guard.signal else "as asked"
        where = f", checkpoint in {args.checkpoint_dir}" if args.checkpoint_dir else "; nothing is saved (no --checkpoint-dir)"
        metrics.say(f"stopped {why} after step {trainer.step} of {trainer.total}{where}")
    elif samples:
        metrics.say(f"done: {trainer.step} steps, {samples} samples in {trainer.seconds:.1f} s, {samples / trainer.seconds:.4g} samples/s")
    elif trainer.step:
        metrics.say(f"nothing to do: step {trainer.step} of {trainer.total} was reached before")
    if metrics.speaks:
        as_compiled = (trainer.source.batch, trainer.source.microbatches) == (trained["batch"], trained["microbatches"])
        say_step(trainer.times(), device, metrics.say, as_compiled)
    if samples and args.profile and trainer.program.calls < trainer.program.needed:
        metrics.say(f"no profile: {args.profile} profiled steps take {trainer.program.needed} steps in all")


def export(args, state, metrics, guard):
    """Write trained weights where asked for."""
    if not (args.export or args.export_onnx):
        return
    from export import named, save_state_dict, write_onnx

    guard.progress("exporting the weights")
    weights = named(state.exported())
    if guard.rank == 0:
        if args.export:
            save_state_dict(weights, args.export)
            metrics.say(f"weights in {args.export}")
        if args.export_onnx:
            write_onnx(HERE / "source.onnx", weights, args.export_onnx)
            metrics.say(f"ONNX model in {args.export_onnx}")


if __name__ == "__main__":
    sys.exit(main())
