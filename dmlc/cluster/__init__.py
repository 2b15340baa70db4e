"""Devices, the links between them, and what is known of both."""

from dmlc.cluster.catalogue import DEVICES, device_named
from dmlc.cluster.cluster import Cluster, Host, Switch
from dmlc.cluster.device import Device
from dmlc.cluster.link import Link

__all__ = ["DEVICES", "Cluster", "Device", "Host", "Link", "Switch", "device_named"]
