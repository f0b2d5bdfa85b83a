"""Training of classifiers from a labelled folder: AdamW, a cosine schedule, the best epoch by held-out accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from coe.core import Expert
from coe.errors import ConfigError
from coe.runtime.processor import trainer_threads
from coe.store.kinds import ModuleKind, Progress, Trained, TrainingPlan
from coe.store.skeletons import skeleton
from experts.augment import Augment
from experts.labelled_folder import LabelledImages, read
from experts.matching import load_matching
from experts.mixed_precision import forward_precision
from experts.taken import Taken

WEIGHT_DECAY = 0.02
WARM_UP = 0.1
"""The share of the steps in which the learning rate rises, from near 0, so that a random network takes no harm."""


def train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress, augment: Augment) -> Trained:
    """Train and return the epoch of the best held-out accuracy (among equals, of the least loss).

    The same plan, machine and threads give the same weights. Rare labels weigh as much as frequent labels.
    """
    with computing(plan.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        return _train(kind, expert, plan, progress, augment)


def _train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress, augment: Augment) -> Trained:
    taken = Taken(plan.data)
    training, held = read(kind, expert, plan, taken)
    generator = torch.Generator().manual_seed(plan.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = skeleton(kind, expert)
    if plan.init is not None:
        load_matching(module, plan.init)
    frozen = freeze(module, plan)
    module = module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = _label_weights(training.labels, len(expert.labels)).to(device)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=plan.learning_rate,
        weight_decay=WEIGHT_DECAY,
        fused=True,  # the default implementation takes a third of the time of a small batch
    )
    steps = plan.epochs * max(1, math.ceil(len(training.labels) / plan.batch))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))
    best: tuple[float, float] | None = None
    state: dict[str, torch.Tensor] = {}
    metrics: dict[str, float] = {}
    for epoch in range(1, plan.epochs + 1):
        module.train()
        for part in frozen:
            part.eval()  # else its batch norms would go on learning
        lost = 0.0
        for places in _batches(len(training.labels), plan.batch, generator):
            images = augment(training.images[places], generator).to(device)
            with forward_precision(plan, device):
                logits = kind.forward(module, images)
            loss = functional.cross_entropy(logits.float(), training.labels[places].to(device), weight=weights)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            lost += float(loss.detach()) * len(places) / len(training.labels)
        now = {**measure(kind, module, held, plan.batch), "train_loss": lost, "epoch": float(epoch)}
        if best is None or (now["accuracy"], -now["loss"]) > best:
            best, metrics = (now["accuracy"], -now["loss"]), now
            state = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
        progress(epoch, plan.epochs, now)
    metrics["held_out"] = float(len(held.labels))
    remarks = tuple(taken.identical())
    seen = expert.preprocessing or kind.preprocessing
    return Trained(state, expert.labels, metrics, remarks, taken.sentence(), learned=taken.learned, preprocessing=seen)


def freeze(module: torch.nn.Module, plan: TrainingPlan) -> list[torch.nn.Module]:
    """Freeze the tensors that `plan.freeze` names; return the modules all of whose tensors are frozen.

    Raises ConfigError if the plan has no `init`, if a name fits no tensor, or if nothing is left to train.
    """
    if not plan.freeze:
        return []
    if plan.init is None:
        raise ConfigError("frozen layers need weights to start from; give the plan an init as well")
    parameters = dict(module.named_parameters())
    for prefix in plan.freeze:
        if not any(name.startswith(prefix) for name in parameters):
            raise ConfigError(f"'{prefix}' cannot be frozen: no tensor of this kind has a name that begins so")
    for name, value in parameters.items():
        value.requires_grad_(not name.startswith(plan.freeze))
    if not any(value.requires_grad for value in parameters.values()):
        raise ConfigError(f"freezing {', '.join(plan.freeze)} leaves nothing to train; name fewer parts")
    return [
        part
        for name, part in module.named_modules()
        if name and not any(v.requires_grad for v in part.parameters()) and any(True for _ in part.parameters())
    ]


def measure(kind: ModuleKind, module: torch.nn.Module, part: LabelledImages, batch: int) -> dict[str, float]:
    """Return `accuracy` and `loss` of a network over `part`."""
    module.eval()
    device = next(module.parameters()).device
    right, lost = 0, 0.0
    with torch.inference_mode():
        for start in range(0, len(part.labels), batch):
            logits = kind.forward(module, part.images[start : start + batch].to(device)).float().cpu()
            labels = part.labels[start : start + batch]
            right += int((logits.argmax(dim=1) == labels).sum())
            lost += float(functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / len(part.labels), "loss": lost / len(part.labels)}


def pace(step: int, steps: int) -> float:
    """Return the factor on the learning rate at a step: a linear rise, then half a cosine down to 1 %."""
    rise = max(1, round(steps * WARM_UP))
    if step < rise:
        return (step + 1) / rise
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise))))


def _batches(count: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    order = torch.randperm(count, generator=generator)
    for start in range(0, count, batch):
        places = order[start : start + batch]
        # Batch norm cannot learn from one image alone: a last batch of one image gets an image from earlier.
        yield places if len(places) > 1 or count == 1 else torch.cat((places, order[:1]))


def _label_weights(labels: torch.Tensor, count: int) -> torch.Tensor:
    frequency = torch.bincount(labels, minlength=count).clamp(min=1).float()
    weights = 1 / frequency
    return weights / (weights * frequency).sum() * frequency.sum()


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """Compute with `threads` threads inside the block (0: all cores), and restore the number after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(trainer_threads(threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)
