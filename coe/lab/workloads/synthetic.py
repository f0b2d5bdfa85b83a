"""Boards of seeded random weights and pictures of noise, for trials: the files are real, the verdicts mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from coe.board import rules
from coe.core import Expert
from coe.errors import ConfigError
from coe.inspector.inspector import Picture
from coe.lab.workloads.picture_forms import PictureForm, handed_in
from coe.profiler.site import drawn_by_count
from coe.runtime.processor import on_fresh_thread
from coe.store import kinds, skeletons
from coe.store.blob_format import Variant
from coe.store.kinds import ExpertInput, ModuleKind
from coe.store.store import Store
from coe.store.store_reader import StoreReader
from coe.variants.prepare import Preparer

if TYPE_CHECKING:
    import torch

_ACTIVATIONS = 8 << 20


def synthetic_board(
    folder: Path,
    *,
    kind: str,
    experts: int,
    input_size: int,
    seed: int,
    files: int | None = None,
    allow_kinds: Sequence[str] = (),
) -> tuple[Path, Store]:
    """Make a board of `experts` experts of one kind with seeded random weights; return its board file and store.

    Each expert has its own weights file; with `files`, the experts share so many files by hard links, and each expert
    is still loaded and counted separately. Counts fall as 1 / rank (a long tail). Earlier files are reused. `kind` is
    a name, or a dotted path in one of the packages `allow_kinds`. Raises ConfigError if there is no such kind.
    """
    files = experts if files is None else min(files, experts)
    if files < 1:
        raise ConfigError(f"{files} files cannot hold an expert; give at least 1")
    resolved = kinds.resolve(kind, allow_kinds)
    if not isinstance(resolved, ModuleKind):
        raise ConfigError(f"kind '{kind}' has no skeleton to fill with random weights")
    # The name holds all that the weights depend on, so that two kinds of trials never share a folder's files; the 2 is
    # the version of how weights are drawn.
    name = f"bench2-{kind.replace(':', '.')}-{experts}-{input_size}px-seed{seed}" + (
        f"-{files}files" if files < experts else ""
    )
    path, store = folder / f"{name}.yaml", Store(folder / "store")
    stored = set(store.ids())
    labels = ("ok", "bad")

    def put(weights: str, draw: Callable[[Expert], dict[str, torch.Tensor]]) -> None:
        state = on_fresh_thread(lambda: draw(Expert("e", kind, labels, input_size, weights)))
        store.put(weights, kind=kind, labels=labels, input_size=input_size, state=state, source=f"seed {seed}")

    for index in range(experts):
        weights, original = f"{name}/e{index}", f"{name}/e{index % files}"
        if weights in stored:
            continue
        if weights != original:
            store.link(weights, original, labels=labels)
            continue
        put(weights, lambda expert, s=seed + index: skeletons.random_weights(resolved, expert, s))  # type: ignore[misc]
    return board_of_equals(path, kind=kind, experts=experts, input_size=input_size), store


def board_of_equals(path: Path, *, kind: str, experts: int, input_size: int) -> Path:
    """Write a board whose experts `e0`, `e1`... are of one kind, each with a component; counts fall as 1 / rank.

    The weights are those of the board's name, which is the stem of `path`. Returns `path`.
    """
    lines = [f"board: {path.stem}", "experts:"]
    lines += [
        f"  e{index}: {{kind: {kind}, labels: [ok, bad], input: {input_size}, reject: [bad], then: {{none: OK}}}}"
        for index in range(experts)
    ]
    lines.append("components:")
    lines += [f"  C{index}: {{count: {experts / (index + 1):.2f}, inspect: e{index}}}" for index in range(experts)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def prepare(
    board: Path, store: Store, variants: Sequence[Variant], say: Callable[[str], None], allow_kinds: Sequence[str] = ()
) -> None:
    """Prepare a board's experts in those `variants` that they lack; raises ConfigError if a variant cannot be made."""
    # Random weights are never sure, so no choice of layers would help.
    preparer = Preparer(store, variants, allow_kinds=allow_kinds, search_s=0)
    noise = _noise(board.parent / "noise") if "int8" in variants else []
    for expert in rules.load(board).experts.values():
        if preparer.lacks(expert.weights):
            say(f"preparing {expert.weights} in {', '.join(variants)}")
            for variant, reason in on_fresh_thread(lambda e=expert: preparer.prepare(e.weights, noise)).failed.items():  # type: ignore[misc]
                raise ConfigError(f"{expert.weights} cannot be prepared in {variant}: {reason}")


def _noise(folder: Path) -> list[Path]:
    """Write pictures of noise that gets coarser, from which `int8` takes the ranges of its numbers; return them."""
    folder.mkdir(exist_ok=True)
    for number in range(8):
        side = 240 >> number % 4
        pixels = np.random.default_rng(number).integers(0, 255, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((240, 240)).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def synthetic_pictures(board: Path, requests: int, seed: int, form: PictureForm = PictureForm.ARRAY) -> list[Picture]:
    """Draw `requests` pictures of noise, with components by their counts.

    Arrays have 240 x 240 pixels. JPEGs have 640 x 480, and as many bytes as a photograph of that size.
    """
    height, width, detail = (240, 240, 1) if form is PictureForm.ARRAY else (480, 640, 4)
    pixels = np.random.default_rng(seed).integers(0, 255, (height // detail, width // detail, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(pixels).resize((width, height)))
    return handed_in(drawn_by_count(rules.load(board), pixels, requests, seed), form)


def in_variant(experts: Sequence[Expert], variant: Variant) -> list[Expert]:
    """Return the experts, to run in a variant."""
    return [replace(expert, variant=variant) for expert in experts]


def black(expert: Expert, images: int) -> list[ExpertInput]:
    """Return a batch of black images for an expert."""
    size = expert.input_size
    return [ExpertInput(np.zeros((3, size, size), np.uint8), size, size)] * images


def quarter_budget(board: Path | str, store: StoreReader) -> int:
    """Return a budget whose three quarters hold a quarter of a board's experts, or the largest one.

    The last quarter is for activations, which need some MiB however small the experts are.
    """
    sizes = [store.manifest(expert.weights).bytes for expert in rules.load(board).experts.values()]
    held = max(sum(sizes) // 4, *sizes)
    return held + max(held // 3, _ACTIVATIONS)
