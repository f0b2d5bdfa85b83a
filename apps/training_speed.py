"""How much faster a training step is with products in bf16 than in fp32, on this processor.

    python -m apps.training_speed

Steps of both precisions take turns, on one thread, from random weights and pictures; times are of the processor. The
loss is the mean square of all outputs: a detector's own loss, decoding and augmentation come on top; results are in
docs/results/demo.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Annotated

import torch
import typer

from coe.cli.common import application, out, run
from coe.core import Expert
from coe.errors import ConfigError
from coe.store import kinds
from coe.store.kinds import ModuleKind

app = application("Training steps in fp32 and in bf16, in turn.")
CASES = ("resnet18:64:32", "resnet18:224:16", "resnet101:96:8", "yolov5n:160:16", "yolov5n:320:8", "yolov5s:320:8")


def tensors(outputs: object) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors in nested outputs of a network."""
    if isinstance(outputs, torch.Tensor):
        if outputs.is_floating_point():
            yield outputs.float()
    elif isinstance(outputs, dict):
        for part in outputs.values():
            yield from tensors(part)
    elif isinstance(outputs, list | tuple):
        for part in outputs:
            yield from tensors(part)


class Step:
    """Training steps of one network on one batch."""

    def __init__(self, kind: ModuleKind, input_size: int, batch: int) -> None:
        expert = Expert("timed", kind.name, ("ok", "bad"), input_size, "timed/timed")
        self._module = kind.skeleton(expert).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self._optimizer = torch.optim.AdamW(self._module.parameters(), lr=1e-4, fused=True)
        self._images = torch.rand(batch, 3, input_size, input_size).contiguous(memory_format=torch.channels_last)

    def seconds(self, bf16: bool) -> float:
        """Make a step and return the seconds of processor time that it took."""
        began = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            outputs = self._module(self._images)
        loss = sum((part.square().mean() for part in tensors(outputs)), torch.zeros(()))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return time.process_time() - began


def step_of(case: str) -> Step:
    """Return the step that KIND:INPUT:BATCH describes; raises ConfigError."""
    name, *numbers = case.split(":")
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) > 1 for number in numbers):
        raise ConfigError(f"--case {case}: write KIND:INPUT:BATCH, as resnet18:224:16")
    kind = kinds.resolve(name)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"--case {case}: kind '{name}' is no network that trains here")
    return Step(kind, *map(int, numbers))


@app.command()
def main(
    case: Annotated[list[str], typer.Option(help="KIND:INPUT:BATCH; several times for several.")] = list(CASES),  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Steps of each precision that count.")] = 7,
) -> None:
    """Print the median seconds of a step in both precisions, and their ratio."""
    torch.set_num_threads(1)
    for text in case:
        step = step_of(text)
        step.seconds(False), step.seconds(True)
        taken = [(step.seconds(False), step.seconds(True)) for _ in range(rounds)]
        fp32, bf16 = (statistics.median(each) for each in zip(*taken, strict=True))
        out.print(f"{text:18} fp32 {fp32:.3f} s, bf16 {bf16:.3f} s, x {bf16 / fp32:.2f}")


if __name__ == "__main__":
    run(app)
