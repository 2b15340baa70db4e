"""Damages `.pt2` files in many ways and imports them: each must give a module or one error, never a traceback.

    python tools/fuzz_pt2.py [FILES] [--start N]        (default 300 files)

A file is a zip: its bytes are flipped or cut, or one member is (with a checksum that is right again), or a word or number of the program's JSON is replaced.
Every import runs in a process of its own with a limit of time and memory; one that PyTorch's own reader takes down is counted apart.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from dmlc.frontend.torch_export import import_program, quiet
from dmlc.ir.location import DmlcError
from dmlc.ir.verifier import verify
from dmlc.tools.fuzz_onnx import in_a_child
from dmlc.tools.onnx_damage import cut, flipped

WORDS = ["0", "-1", "7", "1099511627776", "null", '"no such thing"', "[]", "{}", "true", "1.5"]


class Subject(torch.nn.Module):
    """Convolution, norm, attention, lookup, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = torch.nn.Conv1d(3, 8, 3, padding=1), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)
        self.table = torch.nn.Embedding(5, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.conv(x).transpose(1, 2)) * self.scale + self.table(ids)
        h = torch.nn.functional.scaled_dot_product_attention(h, h, h)
        return torch.softmax(self.out(torch.nn.functional.gelu(h))[:, 1:], -1)


def subject() -> bytes:
    torch.manual_seed(0)
    with quiet(), torch.no_grad():
        program = torch.export.export(Subject().eval(), (torch.randn(2, 3, 6), torch.randint(0, 5, (2, 6))))
        file = io.BytesIO()
        torch.export.save(program, file)
    return file.getvalue()


def member(data: bytes, rng: random.Random) -> bytes:
    """One member damaged, left out or emptied; the zip itself is whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as source:
        contents = {name: source.read(name) for name in source.namelist()}
    programs = [n for n in contents if n.endswith(".json") and b"graph" in contents[n]]
    name = rng.choice(programs if programs and rng.random() < 0.6 else sorted(contents))
    way = rng.randrange(5)
    if way == 0:
        del contents[name]
    elif way == 1:
        contents[name] = rng.choice([b"", b"{}", cut(contents[name] or b" ", rng), flipped(contents[name] or b" ", rng)])
    else:
        contents[name] = reworded(contents[name], rng)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as target:
        for key, content in contents.items():
            target.writestr(key, content)
    return file.getvalue()


def reworded(content: bytes, rng: random.Random) -> bytes:
    """JSON with some of its words and numbers replaced."""
    words = list(re.finditer(rb'"[^"]*"(?!:)|-?\d+\b|true|false|null', content))
    for found in sorted(rng.sample(words, min(len(words), rng.randint(1, 2))), key=lambda m: -m.start()):
        other = rng.choice([rng.choice(WORDS).encode(), rng.choice(words)[0]])
        content = content[: found.start()] + other + content[found.end() :]
    return content


DAMAGES = (flipped, cut, member, member)


def damaged(data: bytes, number: int) -> tuple[str, bytes]:
    damage = DAMAGES[number % len(DAMAGES)]
    return damage.__name__, damage(data, random.Random(number))


def outcome(path: Path) -> str:
    """`module`, `error`, or what else was raised."""
    try:
        verify(import_program(path).module)
    except DmlcError as e:
        return "error" if e.message and e.loc.known and "\n" not in e.message else f"not a message with a place: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "module"


def main(arguments: Sequence[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("files", type=int, nargs="?", default=300)
    p.add_argument("--start", type=int, default=0, help="number of the first file")
    options = p.parse_args(arguments)
    data, counts, failed = subject(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        for number in range(options.start, options.start + options.files):
            name, bytes_ = damaged(data, number)
            path.write_bytes(bytes_)
            found = in_a_child(lambda: outcome(path)) or "taken down by PyTorch's reader"
            counts[found if found in ("module", "error") or found.startswith("taken") else "wrong"] += 1
            if found not in ("module", "error"):
                failed += not found.startswith("taken")
                print(f"file {number} ({name}): {found}", file=sys.stderr, flush=True)
    print(f"{options.files} damaged files: {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
