"""Command line of a training program. Nothing here needs a new compilation."""

import argparse
import os

from launch import add_profiling
from schedule import SCHEDULES

DOC = """Trains the compiled model: `torchrun --nproc-per-node N launch.py`, or bare (then it starts torchrun itself).

Under `torchrun --max-restarts N` a restarted job resumes from the last complete checkpoint by itself. SIGTERM or SIGINT, or a file named
`stop` in the checkpoint folder, ends it cleanly: the step is finished on all ranks, a checkpoint is written, the exit status is 0.
"""

NOISE = """measure the gradient-noise scale every N steps (0: never): the step program runs once more, on the first microbatch alone
(on half the batch where there is one microbatch), and nothing is updated; from the two gradient norms come the estimates of McCandlish et
al. 2018, averaged over time. A program that gives the result micro_grad_norm itself is read in every step instead, at no cost"""


def parser():
    p = argparse.ArgumentParser(description=DOC, formatter_class=argparse.RawDescriptionHelpFormatter)
    _data(p.add_argument_group("data"))
    _optimization(p.add_argument_group("optimization"))
    _output(p.add_argument_group("output"))
    _machine(p.add_argument_group("machine"))
    add_profiling(p.add_argument_group("profile"))
    return p


def _data(g):
    g.add_argument("--data", metavar="MODULE:FUNCTION", help="module:function or file.py:function that gives a map-style dataset or an iterable of samples; "
                   "a sample is a dict by input name, or a tuple in the order of the inputs with the target last. Default: seeded synthetic samples")  # fmt: skip
    g.add_argument("--eval-data", metavar="MODULE:FUNCTION", help="the same for evaluation, after the last step and as --eval-every says")
    g.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True, help="a new order each epoch, by --seed; iterables keep their own order")
    g.add_argument("--drop-last", action="store_true", help="leave out an epoch's last batch when it is not full")
    g.add_argument("--load-threads", type=int, default=1, metavar="N", help="threads of a rank that load samples of a map-style dataset, beside the step")
    g.add_argument("--batch", type=int, help="samples a step over all ranks; default: as compiled")
    g.add_argument("--microbatches", type=int, help="default: as many as the batch needs")


def _optimization(g):
    g.add_argument("--steps", type=int, help="optimizer steps in all, those before a resume included")
    g.add_argument("--epochs", type=float, help="instead of --steps; default: 1 with --data, else 20 steps")
    g.add_argument("--lr", type=float, help="default: 0.001, for sgd 0.01")
    g.add_argument("--weight-decay", type=float, help="default: 0.01 for adamw, else 0")
    g.add_argument("--max-norm", type=float, default=float("inf"), help="clip the gradient's global norm")
    g.add_argument("--schedule", choices=SCHEDULES, default="constant")
    g.add_argument("--warmup", type=int, default=0, help="steps of linear warm-up")
    g.add_argument("--final-lr", type=float, default=0.0, help="part of --lr that a linear or cosine schedule ends with")
    g.add_argument("--seed", type=int, help="of data order, synthetic data and dropout; default: 0, or the checkpoint's")


def _output(g):
    g.add_argument("--log", "--metrics", metavar="FILE.jsonl", help="one JSON line a step (torchrun takes --log for its own option unless `--` stands "
                   "before launch.py: `torchrun --nproc-per-node N -- launch.py --log FILE`; --metrics is the same without that trouble)")  # fmt: skip
    g.add_argument("--log-every", type=int, default=10, help="print every N steps")
    g.add_argument("--eval-every", type=int, default=0, help="evaluate every N steps too")
    g.add_argument("--checkpoint-dir", metavar="DIR", help="write checkpoints there")
    g.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; one is written after the last step anyway")
    g.add_argument("--keep", type=int, default=3, help="how many checkpoints stay")
    g.add_argument("--sync-checkpoint", action="store_true", help="wait until a checkpoint is written instead of training on")
    g.add_argument("--resume", metavar="DIR|auto", nargs="?", const="auto", help="go on from a checkpoint (of any plan and number of ranks); "
                   "auto: the last complete one in --checkpoint-dir, if there is one")  # fmt: skip
    g.add_argument("--export", metavar="FILE", help="trained weights with the model's own names: .safetensors, or .pt for torch.save")
    g.add_argument("--export-onnx", metavar="FILE.onnx", help="the ONNX file the program was compiled from, with trained weights")
    g.add_argument("--noise-every", type=int, default=0, metavar="N", help=NOISE)


def _machine(g):
    g.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    g.add_argument("--kernels", choices=("auto", "triton", "torch", "interpret"), default="auto")
    g.add_argument("--deterministic", action="store_true", help="only deterministic PyTorch kernels")
    g.add_argument("--timeout", type=float, default=600, help="seconds without progress after which all ranks give up")


def parse(arguments, train):
    """Options with defaults that depend on what was compiled. Ends the process with a sentence on values that cannot be."""
    p = parser()
    args = p.parse_args(arguments)
    sgd = train["optimizer"] == "sgd"
    args.lr = (0.01 if sgd else 0.001) if args.lr is None else args.lr
    if args.weight_decay is None:
        args.weight_decay = 0.01 if train["optimizer"] == "adamw" else 0.0
    for name in ("steps", "batch", "microbatches", "log_every", "keep", "load_threads"):
        value = getattr(args, name)
        if value is not None and value < (0 if name == "steps" else 1):
            p.error(f"--{name.replace('_', '-')} {value} is too small")
    if args.steps is not None and args.epochs is not None:
        p.error("give --steps or --epochs, not both")
    if args.profile and args.noise_every:
        p.error("--profile times training steps alone: leave --noise-every out")
    if args.checkpoint_every and not args.checkpoint_dir:
        p.error("--checkpoint-every needs --checkpoint-dir")
    _resume(args, p)
    return args


def _resume(args, p):
    """A restart by torchrun resumes from the last checkpoint, whatever the command line said at the first start."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) and args.checkpoint_dir:
        from checkpoint import latest

        if args.resume is None or latest(args.checkpoint_dir):
            args.resume = "auto"
    if args.resume == "auto" and not args.checkpoint_dir:
        p.error("--resume auto needs --checkpoint-dir; or give the folder of a checkpoint")


def apply_environment(args):
    """What must be set before PyTorch and the kernels are imported."""
    if args.kernels != "auto":
        os.environ["DMLC_KERNELS"] = args.kernels
    if args.kernels == "interpret":
        os.environ["TRITON_INTERPRET"] = "1"
    if args.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
