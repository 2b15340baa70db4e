"""Processes of tests that start with PyTorch loaded: a command that is given as Python what `warm_python` names starts in a tenth of a second, not in three.

`sys.executable` is that file while a test or a file of tests uses the fixture `warm` (conftest.py), so that commands, the torchrun that they start
and its ranks all do. Each is a process of its own, forked from a server, in its own session, with the files, folder, environment, processors,
network and signals of its caller (`warm_client`). Tests of what a process loads, of what loading costs or of hashes take Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOADED = (
    "torch", "torch.distributed", "torch.distributed.checkpoint", "torch.distributed.launcher.api", "torch.distributed.elastic.agent.server.api",
    "torch.distributed.argparse_util", "torch.export", "numpy", "scipy.optimize", "scipy.sparse", "multiprocessing.spawn", "networkx", "safetensors.torch", "yaml", "dmlc.driver",
)  # fmt: skip
NETWORK = 0x40000000  # CLONE_NEWNET


@functools.cache
def warm_python() -> str:
    """The file to be run in Python's place; the server runs until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="warm"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "real").write_text(sys.executable)
    client = folder / "python"
    client.write_text(f"#!{sys.executable} -IS\n" + Path(__file__).with_name("warm_client.py").read_text())
    client.chmod(0o755)
    command = [sys.executable, __file__, str(folder), str(client)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)
    assert server.stdout is not None and server.stdin is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.communicate)
    return str(client)


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """`sys.executable` is the warm one. What `multiprocessing` starts is Python itself: it hands files on that a client does not pass."""
    import multiprocessing.spawn  # noqa: F401  (notes sys.executable)

    cold, sys.executable = sys.executable, warm_python()
    try:
        yield
    finally:
        sys.executable = cold


# ---------------------------------------------------------------- the server


def serve(folder: str, client: str) -> None:
    """Until the tests' process closes its end of standard input."""
    import importlib

    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [p for p in sys.path[1:] if p not in own]  # without this file's folder
    for name in LOADED:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, selectors.DefaultSelector() as waiting:
        listening.bind(f"{folder}/server")
        listening.listen(64)
        waiting.register(listening, selectors.EVENT_READ, None)
        waiting.register(0, selectors.EVENT_READ, None)
        print("ready", flush=True)
        while True:
            for key, _ in waiting.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is listening:
                    _start(listening, waiting, path, client)
                else:
                    _ended(waiting, *key.data)


def _start(listening: socket.socket, waiting: selectors.BaseSelector, path: list[str], client: str) -> None:
    connection, _ = listening.accept()
    head, files, _, _ = socket.recv_fds(connection, 8, 4)
    (length,) = struct.unpack("q", head)
    text = b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    pid = os.fork()
    if pid == 0:
        _be(json.loads(text.decode("utf-8", "surrogateescape")), files, path, client)
    for handle in files:
        os.close(handle)
    connection.sendall(struct.pack("q", pid))
    process = os.pidfd_open(pid)
    waiting.register(connection, selectors.EVENT_READ, (pid, process, connection))
    waiting.register(process, selectors.EVENT_READ, (pid, process, connection))


def _ended(waiting: selectors.BaseSelector, pid: int, process: int, connection: socket.socket) -> None:
    """The process, or else who waits for it, killed: then it is killed with what it started."""
    if connection not in waiting.get_map():
        return  # both at once
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.sendall(struct.pack("q", status))
    for handle in (connection, process):
        waiting.unregister(handle)
    connection.close()
    os.close(process)


# ---------------------------------------------------------------- a process


def _be(request: dict[str, Any], files: list[int], path: list[str], client: str) -> None:
    """Be `python ARGUMENTS` in the caller's place; does not return."""
    status = 1
    try:
        _take_place(request, files, path, client)
        status = _run(request["arguments"])
    finally:
        os._exit(status)


def _take_place(request: dict[str, Any], files: list[int], path: list[str], client: str) -> None:
    import ctypes

    import torch

    os.setsid()
    for n, handle in enumerate(files[:3]):
        os.dup2(handle, n)
    if os.stat(f"/proc/self/fd/{files[3]}").st_ino != os.stat("/proc/self/ns/net").st_ino and ctypes.CDLL(None, use_errno=True).setns(files[3], NETWORK):
        raise OSError(ctypes.get_errno(), "the caller's network")
    os.closerange(3, max(files) + 1024)
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    os.environ.clear()
    os.environ.update(request["environment"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(request["cores"]))))
    sys.executable = client
    sys.path[:] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]


def _run(arguments: list[str]) -> int:
    """The exit status of Python with these arguments."""
    import threading

    status = 1
    try:
        _execute(*arguments)
        status = 0
    except SystemExit as e:
        status = e.code if isinstance(e.code, int) else int(e.code is not None)
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException as e:
        sys.excepthook(type(e), e, e.__traceback__)
        if isinstance(e, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return status & 0xFF


def _execute(first: str, *rest: str) -> None:
    import runpy
    import types

    if first == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(*sys.argv[1:])
