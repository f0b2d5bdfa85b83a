"""Is a small difference to a parent enough? Experts fine-tuned from one network, as parent plus difference.

    python -m apps.parent_difference demo --parent build/demo/training/body-*.safetensors
    python -m apps.parent_difference deeppcb

The difference of each tensor is quantised to 4 bits, or approximated by a low rank, or both. The table says what it
takes and how often the expert says what it says in fp32, alone and with second looks (docs/results/bodies.md). Nothing
here is used by a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.table import Table

from apps.deeppcb import crops
from apps.deeppcb import data as deeppcb
from apps.demo.lessons import BODY
from apps.demo.production import lot, take
from apps.demo.work import head_of
from apps.encodings import Encoding, both, exact, low_rank, q4, q8
from coe.board import rules
from coe.cli.common import application, out, run, wide
from coe.core import Expert, Finding
from coe.prepare.agreement import escalate_below
from coe.prepare.fold import network
from coe.store import kinds
from coe.store.kinds import ModuleKind, Prepared
from coe.store.store import Store, load_tensors

State = dict[str, torch.Tensor]
SAMPLES = 32
"""So many images of each expert set the margin of its second looks, as `coe-experts prepare` does; the others count."""
_BATCH = 128

app = application("Experts as a parent plus a small difference: bytes, and labels that are equal to fp32's.")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to store what is an expert's own: the encoding of its tensors, or of their differences to the parent."""

    name: str
    encoding: Encoding
    of_difference: bool = True


WAYS = (
    Way("fp32, whole tensors", exact, of_difference=False),
    Way("q8, whole tensors", q8, of_difference=False),
    Way("q4 by 32, whole tensors", q4(32), of_difference=False),
    Way("q8", q8),
    Way("q4 by channel", q4(0)),
    Way("q4 by 64", q4(64)),
    Way("q4 by 32", q4(32)),
    Way("rank 8, q8", low_rank(8, "q8")),
    Way("rank 64, q8", low_rank(64, "q8")),
    Way("rank 128, q8", low_rank(128, "q8")),
    Way("rank 32, q8, and q4 by 64", both(low_rank(32, "q8"), q4(64))),
)


@dataclass(frozen=True, slots=True)
class Child:
    """An expert, its parent's tensors and its own, and images ready for it, (n, 3, S, S) uint8; first the samples."""

    expert: Expert
    parent: State
    state: State
    images: torch.Tensor


def encoded(child: Child, way: Way) -> tuple[State, int]:
    """Return an expert's tensors as they come back, and the bytes of those that are not its parent's.

    Tensors of one axis, and those that are of another shape than the parent's, stay fp32.
    """
    result, total = {}, 0
    for name, tensor in child.state.items():
        origin = child.parent.get(name)
        result[name] = tensor
        if origin is not None and torch.equal(origin, tensor):
            continue
        if origin is None or origin.shape != tensor.shape or tensor.ndim < 2 or not tensor.is_floating_point():
            total += tensor.numel() * tensor.element_size()
            continue
        base = origin if way.of_difference else torch.zeros_like(origin)
        made = way.encoding((tensor - base).flatten(1))
        result[name], total = base + made.value.view_as(tensor), total + made.bytes
    return result, total


@torch.inference_mode()
def findings(kind: ModuleKind, child: Child, module: torch.nn.Module, inputs: torch.Tensor) -> list[Finding]:
    """Run images, or what the cut trunk of the network made of them."""
    answers: list[Finding] = []
    size = child.expert.input_size
    blank = Prepared(np.zeros((3, 1, 1), np.uint8), size, size)
    for batch in inputs.split(_BATCH):
        outputs = kind.forward(module, batch) if batch.dtype == torch.uint8 else module(batch)
        answers += kind.postprocess(outputs, [blank] * len(batch), child.expert)
    return answers


@torch.inference_mode()
def cut(kind: ModuleKind, child: Child) -> tuple[torch.Tensor, list[str]]:
    """Return what the layers that are the parent's make of the images, and the names of these layers.

    They run once instead of once for each way. It is for networks whose layers follow each other; for others, and where
    no first layer is the parent's, the images come back.
    """
    module = network(kind, child.expert, child.state)
    changed = {name.split(".")[0] for name, tensor in child.state.items() if not _is_parents(child, name, tensor)}
    names = [name for name, _ in module.named_children()]
    first = next(place for place, name in enumerate(names) if name in changed)
    if not first:
        return child.images, []
    seen: list[torch.Tensor] = []
    hook = module.get_submodule(names[first]).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    expected = torch.cat([kind.forward(module, batch) for batch in child.images.split(_BATCH)])
    hook.remove()
    features = torch.cat(seen)
    _skip(module, names[:first])
    actual = torch.cat([module(batch) for batch in features.split(_BATCH)])
    if not torch.equal(actual, expected):
        return child.images, []
    return features, names[:first]


def _is_parents(child: Child, name: str, tensor: torch.Tensor) -> bool:
    return name in child.parent and torch.equal(child.parent[name], tensor)


def _skip(module: torch.nn.Module, names: Sequence[str]) -> None:
    for name in names:
        setattr(module, name, torch.nn.Identity())


@dataclass(slots=True)
class Tally:
    """Counts of a way over all experts: bytes of their own parts, images, and how they compare with fp32."""

    bytes: int = 0
    images: int = 0
    equal: int = 0
    equal_at_last: int = 0
    again: int = 0
    margins: list[float] = field(default_factory=list)

    def add(self, expected: Sequence[Finding], actual: Sequence[Finding]) -> None:
        """Count one expert's findings; the first `SAMPLES` set the margin under which fp32 looks again."""
        margin = escalate_below(expected[:SAMPLES], actual[:SAMPLES])
        self.margins.append(margin)
        for full, near in zip(expected[SAMPLES:], actual[SAMPLES:], strict=True):
            again = near.margin < margin
            self.images += 1
            self.again += again
            self.equal += full.label == near.label
            self.equal_at_last += again or full.label == near.label


def measure(kind: ModuleKind, children: Iterator[Child], tell: Callable[[str], None]) -> dict[str, Tally]:
    """Run each expert's images in each way."""
    tallies = {way.name: Tally() for way in WAYS}
    for child in children:
        inputs, skipped = cut(kind, child)

        def run_with(state: State, inputs: torch.Tensor = inputs, skipped: list[str] = skipped) -> list[Finding]:
            module = network(kind, child.expert, state)  # noqa: B023 - called in this round alone
            _skip(module, skipped)
            return findings(kind, child, module, inputs)  # noqa: B023

        expected = run_with(child.state)
        for way in WAYS:
            state, own_bytes = encoded(child, way)
            tallies[way.name].bytes += own_bytes
            tallies[way.name].add(expected, expected if way.encoding is exact else run_with(state))
        tell(f"{child.expert.id}: {len(child.images)} images")
    return tallies


def show(tallies: Mapping[str, Tally]) -> None:
    """Print the table."""
    table = Table()
    for column in (
        "an expert's own",
        "MB",
        "of fp32",
        "of q8",
        "equal alone",
        "with second looks",
        "images",
        "second looks",
    ):
        table.add_column(column, justify="left" if column == "an expert's own" else "right", no_wrap=True)
    whole, today = tallies["fp32, whole tensors"].bytes, tallies["q8, whole tensors"].bytes
    for name, tally in tallies.items():
        table.add_row(
            name,
            f"{tally.bytes / 1e6:.2f}",
            f"{tally.bytes / whole:.3f}",
            f"{tally.bytes / today:.2f}",
            f"{tally.equal / tally.images:.3%}",
            f"{tally.equal_at_last / tally.images:.3%} ({tally.images - tally.equal_at_last} not)",
            str(tally.images),
            f"{tally.again / tally.images:.2%}",
        )
    wide(out).print(table)


def demo_children(store: Store, parent: State, boards: int, seed: int) -> Iterator[Child]:
    """Yield the demo's classifiers with pictures of new boards: half as on a line, half with many defects."""
    board = rules.load("demo")
    places = [*lot(boards, seed), *lot(boards, seed + 1, defective=1 / 3)]
    for expert in board.experts.values():
        kind = kinds.resolve(expert.kind)
        if kind.task == "detect":
            continue
        theirs = [place for place in places if board.components[place.component].root.expert == expert.id]
        order = np.random.default_rng(seed).permutation(len(theirs))
        pixels = [kind.preprocess(take(theirs[place]), expert).pixels for place in order]
        start = head_of(parent, expert, BODY.labels)
        yield Child(expert, start, store.load(expert.weights), torch.from_numpy(np.stack(pixels)))


def deeppcb_children(store: Store, folder: Path, step: int) -> Iterator[Child]:
    """Yield DeepPCB's classifiers of one board type with crops, every `step` pixels, of images of the test list."""
    experts = rules.load("deeppcb").experts
    parent = store.load(experts["board-any"].weights)
    pairs = deeppcb.read(folder, "test")
    for expert in experts.values():
        group = expert.id.replace("board-", "group")
        loaded = crops.load([pair for pair in pairs if pair.group == group])
        cuts = [piece for pair in loaded for image in (pair.tested, pair.template) for piece in _crops(image, step)]
        if cuts:
            order = np.random.default_rng(0).permutation(len(cuts))
            pixels = torch.from_numpy(np.stack(cuts)[order])[:, None].expand(-1, 3, -1, -1)
            yield Child(expert, parent, store.load(expert.weights), pixels)


def _crops(image: NDArray[np.uint8], step: int) -> Iterator[NDArray[np.uint8]]:
    for top in range(0, image.shape[0] - crops.SIZE + 1, step):
        for left in range(0, image.shape[1] - crops.SIZE + 1, step):
            yield image[top : top + crops.SIZE, left : left + crops.SIZE]


@app.command()
def demo(
    parent: Annotated[Path, typer.Option(help="The weights from which the demo's classifiers start.")],
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    boards: Annotated[int, typer.Option(min=1, help="Boards of each of the two lots.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the boards.")] = 21001,
) -> None:
    """Measure the classifiers of the demo board."""
    kind = kinds.resolve("resnet18")
    assert isinstance(kind, ModuleKind)
    show(measure(kind, demo_children(Store(store), load_tensors(parent), boards, seed), out.print))


@app.command("deeppcb")
def deeppcb_command(
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    step: Annotated[int, typer.Option(min=1, help="Pixels from one crop to the next.")] = 160,
) -> None:
    """Measure the classifiers of DeepPCB."""
    kind = kinds.resolve("apps.deeppcb.patches:PatchResNet18", ["apps.deeppcb"])
    assert isinstance(kind, ModuleKind)
    show(measure(kind, deeppcb_children(Store(store), deeppcb.find(data), step), out.print))


def main() -> None:
    """Run `python -m apps.parent_difference`."""
    run(app)


if __name__ == "__main__":
    main()
