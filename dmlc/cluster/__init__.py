"""Devices, the links between them, and what is known of both."""

from dmlc.cluster.cluster import Cluster, Link
from dmlc.cluster.device import DEVICES, Device, device_named

__all__ = ["DEVICES", "Cluster", "Device", "Link", "device_named"]
