"""Settings of the trainer's tests."""

from __future__ import annotations

import torch

# Small tensors: a second thread costs more than it brings, most of all beside other processes.
torch.set_num_threads(1)
