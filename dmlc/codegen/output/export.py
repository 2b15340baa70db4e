"""Trained weights as a state dict with the model's own names, or put back into the ONNX file they came from.

    python export.py --checkpoint DIR --out weights.safetensors
    python export.py --checkpoint DIR --onnx trained.onnx

DIR is one checkpoint, or the folder of several (then the last complete one). The ONNX form needs the package onnx.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LARGE = 1_500_000_000  # bytes of weights above which they go into a file beside the ONNX file, which itself may hold 2 GB


def named(pairs):
    """State dict from pairs (names, tensor): tied names share one tensor. Pairs without a tensor (other ranks) are run through."""
    return {name: tensor for names, tensor in pairs if tensor is not None for name in names}


def save_state_dict(weights, path):
    """As safetensors, tied weights being stored once for each name; or with torch.save for .pt, .pth and .bin."""
    import torch
    from safetensors.torch import save_file

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if Path(path).suffix in (".pt", ".pth", ".bin"):
        return torch.save(weights, path)
    return save_file({name: x.contiguous().clone() for name, x in weights.items()}, str(path))


def write_onnx(source, weights, target):
    """Copy the ONNX model `source` to `target` with trained weights in place of the initializers and constants of their names."""
    try:
        import onnx
    except ImportError:
        raise SystemExit("writing ONNX needs the package onnx") from None
    if not Path(source).is_file():
        raise SystemExit("this program was not compiled from an ONNX file: there is no source.onnx; --export gives a state dict")
    model = onnx.load(str(source))
    places = dict(weight_places(model.graph))
    missing = [name for name in weights if name not in places]
    if missing:
        raise SystemExit(f"source.onnx has no initializer {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    for name, x in weights.items():
        replace(places[name], x)
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = {"save_as_external_data": True, "location": target.name + ".data"} if sum(x.nbytes for x in weights.values()) > LARGE else {}
    (target.parent / (target.name + ".data")).unlink(missing_ok=True)
    onnx.save_model(model, str(target), **beside)


def weight_places(graph):
    """(name, tensor to write into) for the initializers and constants of a graph and the graphs inside its nodes."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], attribute.t
            for inner in (attribute.g, *attribute.graphs):
                yield from weight_places(inner)


def replace(tensor, x):
    """Put a torch tensor's values into an ONNX tensor of the same shape, in the ONNX tensor's dtype."""
    import onnx
    import torch

    if tuple(tensor.dims) != tuple(x.shape):
        raise SystemExit(f"{tensor.name}: the ONNX file has shape {tuple(tensor.dims)}, the trained weight {tuple(x.shape)}")
    kinds = {onnx.TensorProto.BFLOAT16: torch.bfloat16, onnx.TensorProto.FLOAT16: torch.float16}
    kinds |= {onnx.TensorProto.DOUBLE: torch.float64, onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.INT64: torch.int64}
    if tensor.data_type not in kinds:
        raise SystemExit(f"{tensor.name}: no way to write ONNX dtype {tensor.data_type}")
    data = x.to(kinds[tensor.data_type]).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    new = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name, raw_data=data)
    tensor.CopyFrom(new)


def from_checkpoint(folder):
    """State dict of a checkpoint: whole tensors in this one process."""
    import runtime
    import table
    import torch
    from checkpoint import is_complete, latest, restore
    from state import SAVED, State

    place = latest(folder) or Path(folder)
    if not is_complete(place):
        raise SystemExit(f"{folder} holds no complete checkpoint")
    whole = runtime.Mesh({})
    plain = [{**a, "dims": ((),) * len(a["shape"]), "order": None} for a in table.ARGUMENTS if a["role"] in SAVED]
    table.ARGUMENTS = plain
    state = State(table, whole, torch.device("cpu"))
    restore(place, state.saved(), state.parts)
    return named(state.exported())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", help="state dict: .safetensors, or .pt for torch.save")
    parser.add_argument("--onnx", help="ONNX file")
    args = parser.parse_args()
    if not (args.out or args.onnx):
        parser.error("give --out or --onnx")
    sys.path.insert(0, str(HERE))
    weights = from_checkpoint(args.checkpoint)
    if args.out:
        save_state_dict(weights, args.out)
    if args.onnx:
        write_onnx(HERE / "source.onnx", weights, args.onnx)
    return 0


if __name__ == "__main__":
    sys.exit(main())
