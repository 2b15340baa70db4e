"""Ranks that die, stand still or are told to stop; checkpoints that are cut off; a job that goes on with other ranks."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from training_folder import write_training_folder
from training_ranks import Job, logged, train

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("warm")

SLOW = """
import os, signal, time, torch

KILLS = {kills}  # start of the job -> (rank, samples that it loads before it kills itself)

class Rows:
    def __init__(self):
        draw = torch.Generator().manual_seed(3)
        self.x, self.loaded = torch.randn(40, 6, generator=draw, dtype=torch.float64), 0
        self.y = torch.randint(0, 3, (40,), generator=draw)

    def __len__(self):
        return 40

    def __getitem__(self, i):
        self.loaded += 1
        if (int(os.environ["RANK"]), self.loaded) == KILLS.get(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))):
            os.kill(os.getpid(), signal.{signal})
        time.sleep({seconds})
        return self.x[i], self.y[i]

def make():
    return Rows()
"""

BASE = ("--lr", 0.1, "--max-norm", 0.5, "--seed", 5, "--device", "cpu", "--log-every", 1)


def data(path: Path, kills: dict[int, tuple[int, int]] | None = None, seconds: float = 0.0, signal: str = "SIGKILL") -> str:
    path.write_text(SLOW.format(kills=kills or {}, seconds=seconds, signal=signal))
    return f"{path}:make"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[int, Path]:
    """One model for 1, 2 and 4 ranks; on 4 the optimizer's state is split, unevenly."""
    place = tmp_path_factory.mktemp("restart")
    return {ranks: write_training_folder(place / str(ranks), ranks, rows=4 // ranks, split=ranks == 4) for ranks in (1, 2, 4)}


@pytest.fixture(scope="module")
def undisturbed(folders, tmp_path_factory) -> dict[int, float]:
    """Losses of 12 steps on one rank."""
    place = tmp_path_factory.mktemp("undisturbed")
    train(folders[1], 1, *BASE, "--data", data(place / "rows.py"), "--steps", 12, "--log", place / "log.jsonl")
    return logged(place / "log.jsonl")


def close(found: dict[int, float], expected: dict[int, float]) -> bool:
    return found.keys() == expected.keys() and all(abs(found[s] - expected[s]) < 1e-12 for s in found)


# ---------------------------------------------------------------- lost ranks


def test_a_killed_rank_restarts_the_job_twice_and_the_losses_are_those_of_an_undisturbed_run(folders, undisturbed, tmp_path):
    draw = random.Random(0)
    kills = {start: (draw.randrange(2), draw.randrange(12, 20)) for start in (0, 1)}  # 4 samples a rank and step, checkpoints after 2, 4, …
    arguments = [*BASE, "--data", data(tmp_path / "rows.py", kills), "--steps", 12, "--metrics", tmp_path / "log.jsonl"]
    arguments += ["--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 2, "--sync-checkpoint"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 2, folders[2] / "launch.py", *arguments]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("goes on from") == 2 and "done: 12 steps" in done.stdout, done.stdout
    assert close(logged(tmp_path / "log.jsonl"), undisturbed)


def test_when_a_rank_is_killed_the_others_end_with_one_message(folders, tmp_path):
    job = Job(folders[4], 4, [*BASE, "--data", data(tmp_path / "rows.py", {0: (2, 9)}), "--steps", 12, "--checkpoint-dir", tmp_path / "ck"])
    job.processes[2].join(60)
    begin = time.monotonic()
    ended = job.end(30)
    assert sorted(ended.statuses) == [-9, 1, 1, 1] and ended.statuses[2] == -9 and time.monotonic() - begin < 30
    messages = re.findall(r"^rank \d: .*all ranks end\..*$", ended.output, re.MULTILINE)
    assert len(messages) == 1 and f"Go on with --resume auto --checkpoint-dir {tmp_path / 'ck'}" in messages[0], ended.output
    assert "Traceback" not in ended.output


def shortened(folder: Path, target: Path) -> Path:
    """A copy of a folder that waits less long for a sign of life."""
    shutil.copytree(folder, target)
    guard = target / "guard.py"
    text = guard.read_text()
    assert "SILENCE = 15.0" in text
    guard.write_text(text.replace("SILENCE = 15.0", "SILENCE = 2.0"))
    return target


def test_a_rank_that_stands_still_ends_the_job(folders, tmp_path):
    folder = shortened(folders[2], tmp_path / "f")
    job = Job(folder, 2, [*BASE, "--data", data(tmp_path / "rows.py", {0: (1, 9)}, signal="SIGSTOP"), "--steps", 12])
    job.processes[0].join(20)
    job.processes[1].kill()
    ended = job.end()
    assert ended.statuses == [1, -9] and "rank 0: rank 1 has given no sign of life for 2 s, in step" in ended.output, ended.output


def test_a_rank_that_makes_no_progress_ends_the_job(folders, tmp_path):
    data(tmp_path / "rows.py", seconds=100)
    job = Job(folders[1], 1, [*BASE, "--data", f"{tmp_path / 'rows.py'}:make", "--steps", 2, "--timeout", "-9"])
    ended = job.end(20)
    assert ended.statuses == [1] and "in step 1; all ranks end." in ended.output, ended.output


def test_an_error_of_one_rank_is_shown_and_ends_all(folders, tmp_path):
    (tmp_path / "rows.py").write_text(
        "import os\nclass Rows:\n  def __len__(self): return 40\n  def __getitem__(self, i): return [0] * int(os.environ['RANK'])\n"
    )
    with (tmp_path / "rows.py").open("a") as file:
        file.write("def make():\n  return Rows()\n")
    ended = Job(folders[2], 2, [*BASE, "--data", f"{tmp_path / 'rows.py'}:make", "--steps", 2]).end(30)
    assert ended.statuses == [1, 1] and len(re.findall(r"a sample has [01] values; the program takes 2: x, target", ended.output)) == 1, ended.output


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("first, second", [(4, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("how", [[], ["--sync-checkpoint"]], ids=["async", "sync"])
def test_other_ranks_and_another_plan_go_on_with_the_same_losses(folders, undisturbed, tmp_path, first, second, how):
    arguments = [*BASE, "--data", data(tmp_path / "rows.py"), "--log", tmp_path / "log.jsonl", "--checkpoint-dir", tmp_path / "ck", "--resume", *how]
    train(folders[first], first, *arguments, "--steps", 7)
    output = train(folders[second], second, *arguments, "--steps", 12)
    assert f"goes on from {tmp_path / 'ck' / 'step-000007'}" in output
    assert close(logged(tmp_path / "log.jsonl"), undisturbed)
    names = {p.name for p in (tmp_path / "ck").iterdir()}
    assert names == {"step-000007", "step-000012", "latest"}


def test_the_last_few_checkpoints_stay(folders, tmp_path):
    train(folders[2], 2, *BASE, "--steps", 9, "--checkpoint-dir", tmp_path / "ck", "--checkpoint-every", 2, "--keep", 2)
    assert {p.name for p in (tmp_path / "ck").iterdir()} == {"step-000008", "step-000009", "latest"}
    assert (tmp_path / "ck" / "latest").read_text() == "step-000009\n"


CUT = {
    "while a rank writes its tensors": ("return self.state_dict[write_item.index.fqn]", "kill(1, 4); return self.state_dict[write_item.index.fqn]"),
    "before it gets its name": ("os.rename(written, final)", "kill(0, 4); os.rename(written, final)"),
    "before it is called the latest": ('write_text(self.folder / "latest"', 'kill(0, 6); write_text(self.folder / "latest"'),
}

KILL = """

def kill(rank, step):
    import signal
    if int(os.environ["RANK"]) == rank and (Path(os.environ.get("CHECKPOINTS", "none")) / f"step-{step:06d}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", CUT)
def test_a_checkpoint_that_is_cut_off_never_replaces_a_good_one(folders, undisturbed, tmp_path, when):
    folder, ck = tmp_path / "f", tmp_path / "ck"
    shutil.copytree(folders[4], folder)
    text = (folder / "checkpoint.py").read_text()
    assert text.count(CUT[when][0]) == 1
    (folder / "checkpoint.py").write_text(text.replace(*CUT[when]) + KILL)
    arguments = [*BASE, "--data", data(tmp_path / "rows.py"), "--steps", 12, "--log", tmp_path / "log.jsonl"]
    arguments += ["--checkpoint-dir", ck, "--checkpoint-every", 2, "--resume", "auto"]
    ended = Job(folder, 4, arguments, {"CHECKPOINTS": str(ck)}).end(30)
    assert sorted(ended.statuses) == [-9, 1, 1, 1], ended.output
    assert (ck / "latest").read_text() == "step-000004\n" and (ck / "step-000006").exists() == (when == "before it is called the latest")
    output = train(folders[2], 2, *arguments)
    assert f"goes on from {ck / 'step-000004'}" in output
    assert close(logged(tmp_path / "log.jsonl"), undisturbed)
    assert not list(ck.glob("*.tmp")) and not list(ck.glob("*.old"))


# ---------------------------------------------------------------- clean stops


def test_a_signal_to_one_rank_stops_all_after_a_step_with_a_checkpoint(folders, undisturbed, tmp_path):
    log, ck = tmp_path / "log.jsonl", tmp_path / "ck"
    arguments = ["--log", log, "--checkpoint-dir", ck, "--resume", "auto", "--steps", 12]
    job = Job(folders[2], 2, [*BASE, *arguments, "--data", data(tmp_path / "rows.py", seconds=0.1)])
    wait_for(log, 3)
    os.kill(job.processes[1].pid, signal.SIGTERM)
    ended = job.end()
    assert ended.statuses == [0, 0] and re.search(r"stopped .* after step \d+ of 12, checkpoint in", ended.output), ended.output
    last = max(logged(log))
    assert last < 12 and json.loads((ck / f"step-{last:06d}" / "training.json").read_text())["step"] == last
    train(folders[2], 2, *BASE, *arguments, "--data", data(tmp_path / "rows.py"))
    assert close(logged(log), undisturbed)


def wait_for(log: Path, steps: int) -> None:
    """Until the log holds so many steps."""
    end = time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < steps:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_bare_call_starts_all_ranks_and_stops_cleanly_on_a_signal(folders, tmp_path):
    log = tmp_path / "log.jsonl"
    arguments = [*BASE, "--data", data(tmp_path / "rows.py", seconds=0.1), "--epochs", 100, "--log", log, "--checkpoint-dir", tmp_path / "ck"]
    command = [sys.executable, str(folders[2] / "launch.py"), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(log, 2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 0 and re.search(r"stopped as asked after step \d+ of 500, checkpoint in", output), output


def test_two_machines_train_together(folders, undisturbed, tmp_path):
    """The shell script for several machines, started twice on this one."""
    script = Path(__file__).parents[1] / "dmlc/codegen/output/launch_train.sh"
    shutil.copytree(folders[2], tmp_path / "f")
    shutil.copy(script, tmp_path / "f" / "launch.sh")
    arguments = [*BASE, "--data", data(tmp_path / "rows.py"), "--steps", 12, "--log", tmp_path / "log.jsonl"]
    environment = {**os.environ, "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    command = ["sh", str(tmp_path / "f" / "launch.sh"), *map(str, arguments)]
    both = [subprocess.Popen(command, env={**environment, "NODE_RANK": str(i)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i in range(2)]
    outputs = [p.communicate(timeout=100)[0] for p in both]
    assert [p.returncode for p in both] == [0, 0], outputs
    assert close(logged(tmp_path / "log.jsonl"), undisturbed)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
