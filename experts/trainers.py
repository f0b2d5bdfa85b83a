"""What the trainers of several kinds have in common: weights to start from, products in bf16, and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from coe.errors import ConfigError
from coe.runtime.processor import has_bf16, trainer_threads
from coe.store.kinds import TrainingPlan
from coe.store.tensor_files import load_tensors


def load_matching(module: torch.nn.Module, path: Path) -> int:
    """Copy the tensors of a safetensors file whose name and shape fit into `module`; return how many fit.

    The module's other tensors, such as the head for another number of labels, keep their fresh values. Raises
    ConfigError if nothing fits, StoreError if the file cannot be read.
    """
    tensors = load_tensors(path)
    state = module.state_dict()
    fitting = {name: value for name, value in tensors.items() if name in state and state[name].shape == value.shape}
    if not fitting:
        raise ConfigError(f"'{path}' holds no tensor that fits this kind; was it made for another kind?")
    module.load_state_dict(fitting, strict=False)
    return len(fitting)


def uses_bf16(plan: TrainingPlan, device: torch.device) -> bool:
    """Tell whether a training computes products in bf16: as planned, else on a CPU whose processor has bf16.

    Weights, sums of gradients and losses stay fp32 (Micikevicius et al., 2018).
    """
    return plan.bf16 if plan.bf16 is not None else device.type == "cpu" and has_bf16()


def forward_precision(plan: TrainingPlan, device: torch.device) -> torch.autocast:
    """Return the context in which the forward passes of a training run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(plan, device))


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """Compute with `threads` threads inside the block (0: all cores), and restore the number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(trainer_threads(threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
