"""Gloo groups that run one collective after another.

A Gloo group of PyTorch has two threads: two collectives share the link, and the first one ends when the second does. What a program does with the
first one's result then waits for both, although its order counts on having it earlier.
"""

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
    inside._devices = [gloo.create_device(interface=name) for name in interfaces] or [gloo.create_default_device()]
    return gloo(options.store, options.group_rank, options.group_size, inside)
