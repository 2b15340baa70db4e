"""Starts the ranks of a training job on this machine by torchrun."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def start_ranks(count, arguments):
    """Bare call: hand over to torchrun with one process a rank. A signal becomes a stop file, since torchrun itself would pass it on and
    then end with an error."""
    nodes = int(os.environ.get("NNODES", 1))
    if count % nodes:
        print(f"{count} ranks do not divide over {nodes} machines", file=sys.stderr)
        return 2
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // (count // nodes))), **os.environ}
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun_options(count, nodes), "--", str(HERE / "launch.py"), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        stop = Path(folder) / "stop"
        ranks = subprocess.Popen(command, env={**environment, "DMLC_STOP_FILE": str(stop)}, start_new_session=True)

        def on_signal(number, _frame):
            if stop.exists():
                ranks.send_signal(number)
            stop.touch()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)
        return ranks.wait()


def torchrun_options(count, nodes):
    """For this machine of `nodes`, by NODE_RANK, MASTER_ADDR, MASTER_PORT, LOCAL_ADDR (this machine's address, where the others cannot resolve
    its name), JOB_ID and MAX_RESTARTS in the environment. The command puts `--`
    behind them, which keeps torchrun from reading the script's options as abbreviations of its own."""
    given = os.environ.get
    found = ["--nproc-per-node", str(count // nodes), "--max-restarts", given("MAX_RESTARTS", "0")]
    if nodes == 1:
        return ["--standalone", *found]
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise SystemExit(f"NNODES={nodes} needs {' and '.join(missing)} too: the number of this machine, the address of the first")
    place = f"{given('MASTER_ADDR')}:{given('MASTER_PORT', '29500')}"
    # Machine 0 is told to be the host: torchrun would compare names, which fails where a machine does not know its own address.
    found += ["--nnodes", str(nodes), "--rdzv-conf", f"is_host={int(int(given('NODE_RANK')) == 0)}"]
    found += ["--local-addr", given("LOCAL_ADDR")] if "LOCAL_ADDR" in os.environ else []
    return [*found, "--rdzv-backend", "c10d", "--rdzv-id", given("JOB_ID", "dmlc"), "--rdzv-endpoint", place]
