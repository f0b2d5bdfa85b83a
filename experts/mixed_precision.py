"""Training with products in bf16: weights, gradients' sums and losses stay fp32 (Micikevicius et al., 2018)."""

from __future__ import annotations

import torch

from coe.runtime.processor import has_bf16
from coe.store.kinds import TrainingPlan


def uses_bf16(plan: TrainingPlan, device: torch.device) -> bool:
    """Tell whether a training computes products in bf16: as planned, else on a CPU whose processor has bf16."""
    return plan.bf16 if plan.bf16 is not None else device.type == "cpu" and has_bf16()


def forward_precision(plan: TrainingPlan, device: torch.device) -> torch.autocast:
    """Return the context in which the forward passes of a training run."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bf16(plan, device))
