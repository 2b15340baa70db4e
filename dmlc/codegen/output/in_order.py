"""Gloo groups that run one collective after another.

A Gloo group of PyTorch has two threads: two collectives share the link, and the first one ends when the second does. What a program does with the
first one's result then waits for both, although its order counts on having it earlier.

And the thread that watches a device's sockets is a batch task here, one that interrupts nobody when it wakes: Gloo's tries the lock of a connection,
and as long as another thread has it, the same event is reported at once again. Where both share a core, it goes round until its time slice
is over, three milliseconds a message, since the one that has the lock cannot run. (An all-reduction of 1 KB of two ranks with one core each: 3.6 ms
so, 0.4 ms as a batch task.)
"""

import contextlib
import os

import torch.distributed as dist

NAME = "gloo_in_order"


def backend(default):
    """The backend of groups along a mesh's axes, given the default group's: of Gloo the one that keeps order."""
    if default != "gloo":
        return default
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    return NAME


def is_gloo(name):
    return name in ("gloo", NAME)


def _create(options, _):
    gloo = dist.ProcessGroupGloo
    interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    inside = gloo._Options()
    inside._threads = 1
    inside._timeout = options.timeout
    with _batch_threads():
        inside._devices = [gloo.create_device(interface=name) for name in interfaces] or [gloo.create_default_device()]
    return gloo(options.store, options.group_rank, options.group_size, inside)


@contextlib.contextmanager
def _batch_threads():
    """Threads that are made inside are batch tasks, where the system has them and allows it."""
    usual = os.sched_getscheduler(0) if hasattr(os, "SCHED_BATCH") else None
    changed = usual is not None and usual == os.SCHED_OTHER and _become(os.SCHED_BATCH)
    try:
        yield
    finally:
        if changed:
            _become(usual)


def _become(policy):
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:  # a container may forbid it
        return False
    return True
