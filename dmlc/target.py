"""The devices that a program is planned for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dmlc.cluster import Cluster, device_named
from dmlc.cluster.catalogue import device_called

if TYPE_CHECKING:
    from dmlc.driver import Options


def cluster_of(options: Options) -> Cluster:
    """The cluster planned for."""
    return options.cluster or Cluster.named(target_of(options), options.devices)


def target_of(options: Options) -> str:
    """The device planned for: the cluster's, the one asked for, the visible GPU's type, else h100."""
    if options.cluster is not None:
        return options.cluster.device.name
    if options.target:
        return device_named(options.target).name
    return visible_gpu() or "h100"


def visible_gpu() -> str | None:
    """Catalogue name of the GPU of this machine, if PyTorch sees one that the catalogue knows."""
    import torch

    found = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return device_called(found.name, found.total_memory) if found is not None else None
