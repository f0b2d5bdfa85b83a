"""Training of classifiers from a labelled folder: AdamW, a cosine schedule; the best epoch, or the last of few images.

What chose the epoch does not measure it: the figures are of a third part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers.rates import Rate
from coe.pictures.photographs import Purpose
from coe.store.exam import ExamItem
from coe.store.kinds import ModuleKind, Progress, Trained, TrainingPlan
from coe.store.skeletons import skeleton
from experts import beside_good
from experts.augment import Augment
from experts.beside_good import Pictures
from experts.labelled_folder import LabelledImages, read
from experts.proof import unproven_answers
from experts.taken import TakenPictures
from experts.trainers import computing, forward_precision, load_matching

WEIGHT_DECAY = 0.02
WARM_UP = 0.1
"""The share of the steps in which the learning rate rises, from near 0, so that a random network takes no harm."""


def train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress, augment: Augment) -> Trained:
    """Train and return the epoch of the best accuracy in the part to choose by (among equals, of the least loss).

    Without such a part the last epoch is returned. `accuracy` and `loss` are of the held-out part.

    The same plan, machine and threads give the same weights. Rare labels weigh as much as frequent labels.
    """
    with computing(plan.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        varied = replace(augment, rotate=180.0) if plan.turned else augment
        return _train(kind, expert, plan, progress, varied)


def _train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress, augment: Augment) -> Trained:
    taken = TakenPictures(plan.data, plan.bits)
    learning, choosing, held_out = read(kind, expert, plan, taken).values()
    training, chooses = Pictures.of_data(learning, taken, Purpose.LEARN), len(choosing.labels) > 0
    watched = choosing if chooses else held_out
    generator = torch.Generator().manual_seed(plan.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = skeleton(kind, expert)
    good_parts, module.optional = getattr(module, "optional", None), None  # learned in the end
    left_out: tuple[str, ...] = ()
    remarks: list[str] = []
    if plan.init is not None:
        load_matching(module, plan.init)
        if good_parts is not None:
            training, left_out, remarks = beside_good.unsuspected(kind, module, expert, training)
    frozen = freeze(module, plan)
    module = module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    weights = _label_weights(training.labels, len(expert.labels)).to(device)
    optimizer, scheduler = _optimizer(module, plan, len(training.labels))
    best: tuple[float, float] | None = None
    state: dict[str, torch.Tensor] = {}
    chosen: dict[str, float] = {}
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
        seen = answers(kind, module, watched, plan.batch)
        now = {**seen.measures(), "train_loss": lost, "epoch": float(epoch)}
        if best is None or not chooses or (seen.accuracy, -seen.loss) > best:
            best, chosen = (seen.accuracy, -seen.loss), {"train_loss": lost, "epoch": float(epoch)}
            if chooses or epoch == plan.epochs:
                state = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
        progress(epoch, plan.epochs, now)
    if chooses:
        module.load_state_dict(state)
        seen = answers(kind, module, held_out, plan.batch)
    items: list[ExamItem] | None = None
    if good_parts is not None:
        measures, items, told = beside_good.add_parts(kind, module.cpu(), good_parts, expert, plan, training)
        state = {name: value.contiguous().clone() for name, value in module.state_dict().items()}
        chosen, remarks = {**chosen, **measures}, [*remarks, *told]
    metrics = {**seen.measures(), **chosen, "held_out": float(len(seen.truth)), **taken.measures(expert)}
    unproven = unproven_answers(seen.truth, seen.said)
    return Trained(
        state,
        expert.labels,
        metrics,
        (*taken.identical(), *remarks, *seen.unseen_labels(expert.labels)),
        taken.sentence(),
        learned=taken.learned,
        preprocessing=expert.preprocessing or kind.preprocessing,
        unproven=unproven,
        exam=beside_good.exam_of(items, left_out),
    )


def _optimizer(
    module: torch.nn.Module, plan: TrainingPlan, count: int
) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """Return what changes the weights that are not frozen, and its pace over the epochs of so many pictures."""
    optimizer = torch.optim.AdamW(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=plan.learning_rate,
        weight_decay=WEIGHT_DECAY,
        fused=True,  # the default implementation takes a third of the time of a small batch
    )
    steps = plan.epochs * max(1, math.ceil(count / plan.batch))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))


def freeze(module: torch.nn.Module, plan: TrainingPlan) -> list[torch.nn.Module]:
    """Freeze the tensors that `plan.freeze` names; return the modules all of whose tensors are frozen.

    Raises ConfigError if the plan has no `init`, if a name fits no tensor, or if nothing is left to train.
    """
    if not plan.freeze:
        return []
    if plan.init is None:
        raise ConfigError("frozen layers need weights to start from; give an init as well")
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


@dataclass(frozen=True, slots=True)
class HeldAnswers:
    """The true labels and the answers, both (n,) int64, of images, and the mean loss."""

    truth: torch.Tensor
    said: torch.Tensor
    loss: float

    @property
    def accuracy(self) -> float:
        """The share of right answers; NaN without images."""
        return float((self.truth == self.said).float().mean())

    def measures(self) -> dict[str, float]:
        """Return accuracy, with its lower bound of 95 % confidence, and loss; nothing without images."""
        if not len(self.truth):
            return {}
        right = Rate(int((self.truth == self.said).sum()), len(self.truth))
        return {"accuracy": right.share, "accuracy_at_least": right.lower(), "loss": self.loss}

    def unseen_labels(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield a sentence on the labels whose images were all taken for others, if there are any."""
        of_label = {label: self.said[self.truth == place] == place for place, label in enumerate(labels)}
        if wrong := [
            f"{len(right)} of '{label}'" for label, right in of_label.items() if len(right) and not right.any()
        ]:
            yield f"none of these held-out pictures is judged right: {', '.join(wrong)}"


def answers(kind: ModuleKind, module: torch.nn.Module, part: LabelledImages, batch: int) -> HeldAnswers:
    """Return what a network says of `part`."""
    module.eval()
    device = next(module.parameters()).device
    said, lost = [torch.zeros(0, dtype=torch.int64)], 0.0
    with torch.inference_mode():
        for start in range(0, len(part.labels), batch):
            logits = kind.forward(module, part.images[start : start + batch].to(device)).float().cpu()
            said.append(logits.argmax(dim=1))
            lost += float(functional.cross_entropy(logits, part.labels[start : start + batch], reduction="sum"))
    return HeldAnswers(part.labels, torch.cat(said), lost / max(1, len(part.labels)))


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
