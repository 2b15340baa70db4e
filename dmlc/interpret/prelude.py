"""Helpers that op texts call. Needs torch alone: code generation copies this file into the output folder, dmlc is not there."""

import math  # noqa: F401

import torch
import torch.nn.functional as F  # noqa: F401, N812
