"""Runs the compiled program: `torchrun --nproc-per-node N launch.py`, or bare (then it starts torchrun itself).

Without --inputs it feeds seeded synthetic data. Rank 0 prints shapes, latency and a checksum of every result.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NO_GPU = "--kernels triton needs a GPU; --kernels interpret runs the Triton source on a processor"


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", help="file.npz with one array an input")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="without --inputs: an open size of the program")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=AxB", help="without --inputs: the shape of an input")
    parser.add_argument("--save", help="file.npz for the results")
    parser.add_argument("--check", help="file.npz with expected results; exit 1 when they differ by more than --tolerance of scale")
    parser.add_argument("--tolerance", type=float, help="default: as fits the precision the program was compiled for")
    parser.add_argument("--kernels", choices=("auto", "triton", "torch", "interpret"), default="auto")
    parser.add_argument("--repeat", type=int, default=5, help="timed runs after the first")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    add_profiling(parser)
    return parser.parse_args()


def add_profiling(parser):
    parser.add_argument(
        "--profile", type=int, nargs="?", const=5, default=0, metavar="STEPS", help="time every op in so many steps after the first ones; default 5"
    )
    parser.add_argument("--profile-to", default=str(HERE / "profile.json"), metavar="FILE", help="where the times go; default: profile.json in this folder")
    parser.add_argument("--trace", metavar="FILE", help="with --profile: one of these steps for Perfetto")
    parser.add_argument("--alone", action="store_true", help="one process plays rank 0, its collectives are local copies: for --profile without a cluster")


def start_ranks(count):
    """Bare call: hand over to torchrun with one process a rank."""
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count)), **os.environ}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), str(HERE / "launch.py"), *sys.argv[1:]]
    try:
        return subprocess.run(command, env=environment).returncode
    except KeyboardInterrupt:
        return 130


def main():
    sys.path.insert(0, str(HERE))
    import sizes
    import table

    if getattr(table, "TRAIN", None):
        import train

        return train.main()
    args = options()
    try:
        args.sizes = sizes.of_run(table, args)
    except sizes.WrongSize as e:
        print(e, file=sys.stderr)
        return 2
    if args.kernels != "auto":
        os.environ["DMLC_KERNELS"] = args.kernels
    if args.kernels == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    if "RANK" not in os.environ:
        if table.RANKS > 1 and not args.alone:
            return start_ranks(table.RANKS)
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    import torch.distributed as dist

    world = int(os.environ["WORLD_SIZE"])
    if world != (1 if args.alone else table.RANKS):
        print(f"this program is compiled for {table.RANKS} ranks, but torchrun started {world}", file=sys.stderr)
        return 2
    device = choose_device(args)
    if args.kernels == "triton" and device.type != "cuda":
        print(NO_GPU, file=sys.stderr)
        return 2
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if args.alone:
        play_alone(device)
    try:
        return run(args, device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def play_alone(device):
    """From now on the runtime's collectives are local copies."""
    import alone
    import runtime

    runtime.dist = alone.Alone("nccl" if device.type == "cuda" else "gloo")


def profiled(args, program, mesh, device, say):
    """The program, or one that times its ops and then writes what it found."""
    if not args.profile:
        return program
    import timeline
    import timing

    return timing.Profiled(program, mesh, device, args.profile, lambda found: timeline.save(found, args.profile_to, args.trace, say))


def choose_device(args):
    """This rank's device: a GPU where it is asked for or where there is one for each rank of this machine."""
    import torch

    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if args.device == "cpu" or (args.device == "auto" and not (torch.cuda.is_available() and torch.cuda.device_count() >= ranks)):
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    return device


def run(args, device):
    import table

    results, first, times = execute(load_inputs(args), device, args.repeat, lambda program, mesh: profiled(args, program, mesh, device, print))
    return report(args, dict(zip([r["name"] for r in table.RESULTS], results)), first, times, device) if results is not None else 0


def execute(given, device, repeat=0, measured=lambda program, mesh: program):
    """Run this rank's program on the global inputs `given` (by name). Rank 0 gets the global results in order, seconds of the first
    run and of `repeat` more; other ranks get None in the results' place. `measured` may put another program in the program's place."""
    import model
    import runtime
    import sizes
    import table
    import torch

    mesh = runtime.Mesh(table.MESH)
    same_program(mesh)
    weights = load_weights(mesh, device, given)
    found = sizes.numbers(table, {name: tuple(x.shape) for name, x in given.items()})
    wanted = [sizes.row_at(a, found) for a in table.ARGUMENTS if a["role"] == "input"]
    inputs = {a["name"]: runtime.cut(given[a["name"]], mesh, mesh.rank, a["shape"], a["dims"], a["grains"]).to(device) for a in wanted}
    program = measured(model.Program(mesh, device, *([found] if found else [])), mesh)
    with torch.no_grad():
        results, first = timed(program, weights, inputs, device)
        times = [timed(program, weights, inputs, device)[1] for _ in range(max(repeat, getattr(program, "needed", 0) - 1))]
        times = getattr(program, "plain_seconds", times)
    rows = [sizes.row_at(r, found) for r in table.RESULTS]
    joined = [runtime.gather_result(x, mesh, r["shape"], r["dims"], r["grains"], r["stage"]) for r, x in zip(rows, results)]
    return joined if mesh.rank == 0 else None, first, times


def same_program(mesh):
    """All ranks run the same program, or none does: compares a hash of model.py before the first step."""
    same_everywhere(mesh, (HERE / "model.py").read_bytes(), "the ranks hold different programs (model.py differs)")


def same_everywhere(mesh, data, complaint):
    """Ends every rank with `complaint` unless all have the same bytes `data`."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    digest = hashlib.sha256(data).digest()
    number = torch.tensor(int.from_bytes(digest[:7], "big"))
    if dist.get_backend() == "nccl":
        number = number.cuda()
    low, high = number.clone(), number.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    if int(low) != int(high):
        raise SystemExit(complaint)


def load_weights(mesh, device, given):
    """Each rank reads only its own slices of the weights. A value in `given` takes the place of one that the model lets callers override."""
    import runtime
    import table
    import torch
    from safetensors import safe_open

    weights = {}
    if not table.WEIGHTS:
        return weights
    with safe_open(str(HERE / table.WEIGHTS), framework="pt") as file:
        for a in table.ARGUMENTS:
            if a["role"] == "input":
                continue
            stored = file.get_slice(a["name"]) if a["shape"] else file.get_tensor(a["name"])
            source = given.get(a["name"], stored)
            mine = runtime.cut(source, mesh, mesh.rank, a["shape"], a["dims"], a["grains"]).to(device, getattr(torch, a["dtype"]))
            weights[a["name"]] = runtime.laid_out(mine, a["order"])
    return weights


def load_inputs(args):
    import numpy as np
    import sizes
    import table
    import torch

    found = args.sizes if args.inputs is None else sizes.of_file(table, args.inputs)
    wanted = [sizes.row_at(a, found) for a in table.ARGUMENTS if a["role"] == "input"]
    if args.inputs is None:
        return {a["name"]: synthetic(a, args.seed + i) for i, a in enumerate(wanted)}
    file = np.load(args.inputs)
    missing = [a["name"] for a in wanted if a["name"] not in file.files]
    if missing:
        raise SystemExit(f"{args.inputs} lacks the inputs {', '.join(missing)}; it holds {', '.join(file.files)}")
    given = {}
    for a in wanted + [a for a in table.ARGUMENTS if a["overridable"] and a["name"] in file.files]:
        given[a["name"]] = torch.from_numpy(file[a["name"]]).to(getattr(torch, a["dtype"]))
        if tuple(given[a["name"]].shape) != tuple(a["shape"]):
            raise SystemExit(f"input {a['name']} has shape {tuple(given[a['name']].shape)}; the program is compiled for {tuple(a['shape'])}")
    return given


def synthetic(argument, seed):
    import torch

    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, argument["dtype"])
    if dtype.is_floating_point:
        return torch.randn(argument["shape"], generator=generator).to(dtype)
    low, high = argument["range"] or (0, 2)
    return torch.randint(low, high, argument["shape"], generator=generator).to(dtype)


def timed(program, weights, inputs, device):
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
    begin = time.perf_counter()
    results = program(weights, inputs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return results, time.perf_counter() - begin


def report(args, results, first, times, device):
    import numpy as np
    import sizes
    import table
    from timeline import say_step

    arrays = {name: (x.float() if "bfloat16" in str(x.dtype) else x).numpy() for name, x in results.items()}
    for name, a in arrays.items():
        finite = np.isfinite(a.astype(np.float64))
        total, odd = float(a.astype(np.float64)[finite].sum()), finite.size - int(finite.sum())
        print(f"{name}: shape {tuple(a.shape)} {a.dtype}, checksum {total:.6g}" + (f" without {odd} of {a.size} that are not finite" if odd else ""))
    latency = f"{sorted(times)[len(times) // 2] * 1e3:.2f} ms (median of {len(times)})" if times else "not measured"
    print(f"latency {latency}, first run {first * 1e3:.1f} ms, on {device.type}")
    say_step(times, device, print, sizes=sizes.unusual(table, args.sizes))
    if args.save:
        np.savez(args.save, **arrays)
    if args.check:
        return compare(arrays, np.load(args.check), args.tolerance if args.tolerance is not None else table.TOLERANCE)
    return 0


def compare(arrays, expected, tolerance):
    import numpy as np

    worst = 0.0
    for name in expected.files:
        want, got = expected[name].astype(np.float64), arrays[name].astype(np.float64)
        scale = max(float(np.abs(want[np.isfinite(want)]).max(initial=0.0)), 1e-30)
        same = (want == got) | (np.isnan(want) & np.isnan(got))
        difference = float(np.max(np.where(same, 0.0, np.abs(want - got)), initial=0.0)) / scale
        worst = max(worst, difference if difference == difference else float("inf"))
        print(f"{name}: largest difference {difference:.2e} of scale")
    print("check passed" if worst <= tolerance else f"check FAILED: {worst:.2e} is above {tolerance:.0e}")
    return 0 if worst <= tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
