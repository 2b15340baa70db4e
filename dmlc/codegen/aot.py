"""Builds every kernel of a kernels.py for given GPUs without having one, and reads what each needs: registers, shared memory, spills.

Runs in a process of its own (`build` starts it): Triton's compiler and its interpreter cannot share one, and the generated file is
imported there under the compiler. As a script: `python aot.py kernels.py sm_80 sm_90` prints the JSON.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TARGETS = ("sm_80", "sm_90")
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}  # bytes a block may have, CUDA programming guide, table of compute capabilities

Resources = dict[str, Any]


def build(kernels: Path, targets: Sequence[str] = TARGETS, cache: Path | None = None) -> dict[str, Any]:
    """The content of kernels.json: versions, and for each kernel and target registers, shared memory, stack and spilled bytes.

    Nothing is built without Triton: then `kernels` is empty and `note` says so. `cache` is a folder that keeps results by the source's hash.
    Raises `RuntimeError` with Triton's message when a kernel does not build.
    """
    if importlib.util.find_spec("triton") is None:
        return {"kernels": {}, "note": "Triton is not installed, so no kernel was built ahead of time"}
    kept = cache / f"{_digest(kernels, targets)}.json" if cache is not None else None
    if kept is not None and kept.exists():
        return json.loads(kept.read_text())
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run([sys.executable, str(Path(__file__).resolve()), str(kernels), *targets], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"building the kernels of {kernels} failed:\n{done.stderr.strip()}")
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(done.stdout)
    return json.loads(done.stdout)


def kernels_report(source: str, targets: Sequence[str] = TARGETS, cache: Path | None = None) -> dict[str, Any]:
    """`build` of a kernels.py given as text."""
    from dmlc.codegen.copied import prelude_text

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(source)
        (Path(folder) / "prelude.py").write_text(prelude_text())
        return build(path, targets, cache)


def _digest(kernels: Path, targets: Sequence[str]) -> str:
    """Of the source, the targets and Triton's version."""
    from importlib.metadata import version

    parts = [kernels.read_text(), *targets, version("triton")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def faults(report: Mapping[str, Any]) -> list[str]:
    """A sentence for every kernel that spills or needs more shared memory than a block can have."""
    found = []
    for name, targets in report["kernels"].items():
        for target, needs in targets.items():
            if needs["spilled_bytes"]:
                found.append(f"{name} spills {needs['spilled_bytes']} bytes on {target}")
            if needs["shared_bytes"] > SHARED_LIMIT.get(target, 48 * 1024):
                found.append(f"{name} needs {needs['shared_bytes']} bytes of shared memory on {target}")
    return found


# ---------------------------------------------------------------- in the process of its own


def _load(path: Path) -> Any:
    """The generated module, its folder first on the path (its helpers lie beside it)."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location("generated_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generated_kernels"] = module
    spec.loader.exec_module(module)
    return module


def _compile(entry: Mapping[str, Any], target: str) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function, constants = entry["kernel"], entry["constants"]
    signature = {name: "constexpr" if name in constants else entry["pointers"][name] for name in function.arg_names}
    aligned: Any = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(function.arg_names) if name not in constants and name not in entry.get("any", ())}
    options = {key: entry[key] for key in ("num_warps", "maxnreg") if key in entry} | {"enable_fp_fusion": True}
    source = ASTSource(fn=function, signature=signature, constexprs=dict(constants), attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", int(target.removeprefix("sm_")), 32), options=options)


def _resources(built: Any, target: str) -> Resources:
    """Read off the binary. A stack is not yet a spill (the slow path of sine has an array), so then ptxas is asked."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(built.asm["cubin"])
        usage = subprocess.run([knobs.nvidia.cuobjdump.path, "-res-usage", str(binary)], capture_output=True, text=True, check=True).stdout
        found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
        spilled = _spilled(built.asm["ptx"], target, Path(folder)) if found.get("STACK") or found.get("LOCAL") else 0
    return {
        "registers": found["REG"],
        "stack_bytes": found.get("STACK", 0),
        "spilled_bytes": spilled,
        "shared_bytes": built.metadata.shared,
        "warps": built.metadata.num_warps,
    }


def _spilled(ptx: str, target: str, folder: Path) -> int:
    """Bytes of spill stores and loads that ptxas reports."""
    from triton.backends.nvidia.compiler import get_ptxas

    source = folder / "kernel.ptx"
    source.write_text(ptx)
    machine = re.search(r"\.target\s+(sm_\w+)", ptx)
    tool = get_ptxas(int(target.removeprefix("sm_"))).path
    log = subprocess.run(
        [tool, "-v", f"--gpu-name={machine[1] if machine else target}", str(source), "-o", os.devnull], capture_output=True, text=True, check=True
    ).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill", log)))


def _report(path: Path, targets: Sequence[str]) -> dict[str, Any]:
    import triton

    table = _load(path).AHEAD_OF_TIME
    kernels: dict[str, dict[str, Resources]] = {}
    for name, entry in table.items():
        for target in targets:
            kernels.setdefault(name, {})[target] = _resources(_compile(entry, target), target)
    return {"triton": triton.__version__, "kernels": kernels}


def main(arguments: Sequence[str]) -> None:
    path, *targets = arguments
    print(json.dumps(_report(Path(path), targets or TARGETS), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
