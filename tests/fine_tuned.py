"""Experts that were fine-tuned as a whole from one parent: every layer moved, batch norms too, in few directions."""

from pathlib import Path

import pytest
import torch
from built_once import Build

from coe.core import Expert
from coe.lab.workloads import synthetic
from coe.prepare.prepare import Preparer
from coe.store import kinds, random_weights
from coe.store.store import Store

PARENT = "tuned/p"
LABELS = {"p": ("ok", "bad"), "a": ("ok", "bad"), "b": ("ok", "bad"), "c": ("ok", "bad", "worse")}
LINKS = "defghi"
"""Experts of the board with the files of `a`, loaded and counted by themselves."""
BOARD = (
    """
board: tuned
experts:
  c: {kind: narrow, labels: [ok, bad, worse], input: 32}
"""
    + "".join(f"  {name}: {{kind: narrow, labels: [ok, bad], input: 32}}\n" for name in f"ab{LINKS}")
    + """
components:
  C: {count: 2, inspect: c, then: {ok: OK, bad: NG, worse: NG}}
"""
    + "".join(f"  {name.upper()}: {{inspect: {name}, then: {{ok: OK, bad: NG}}}}\n" for name in f"ab{LINKS}")
)


def expert(name: str, variant: str = "delta") -> Expert:
    """Return an expert of the board, or their parent."""
    return Expert(name, "narrow", LABELS[name], 32, f"tuned/{name}", variant=variant)


def random_state(labels: tuple[str, ...], seed: int) -> dict[str, torch.Tensor]:
    """Return weights as they are at the start of a training."""
    kind = kinds.resolve("narrow")
    assert isinstance(kind, kinds.ModuleKind)
    return random_weights.random_weights(kind, Expert("x", "narrow", labels, 32, ""), seed)


def moved(labels: tuple[str, ...], seed: int, by: float = 0.1, rank: int = 3) -> dict[str, torch.Tensor]:
    """Return weights that moved from the parent's by a share of their size, each matrix in `rank` directions."""
    parent, chance = random_state(LABELS["p"], 0), torch.Generator().manual_seed(seed)
    state, matrices = random_state(labels, seed), synthetic.moved(parent, seed, by=by, directions=rank)
    for name, start in parent.items():
        if start.shape == state[name].shape and start.is_floating_point():
            state[name] = start + 0.1 * torch.rand(start.shape, generator=chance) if start.ndim < 2 else matrices[name]
    return state


def put(store: Store, name: str, state: dict[str, torch.Tensor]) -> None:
    """Put an expert into a store."""
    store.put(f"tuned/{name}", kind="narrow", labels=LABELS[name], input_size=32, state=state)


def fill(folder: Path) -> Store:
    """Put parent and experts into a store in a folder, as differences too; and the board's file there."""
    (folder / "tuned.yaml").write_text(BOARD, encoding="utf-8")
    store = Store(folder / "store")
    put(store, "p", random_state(LABELS["p"], 0))
    preparer = Preparer(store, ("fp32", "q8", "delta"), parent=PARENT)
    for seed, name in enumerate("abc", start=1):
        put(store, name, moved(LABELS[name], seed))
        assert preparer.prepare(f"tuned/{name}").failed == {}
    for name in LINKS:
        store.link(f"tuned/{name}", "tuned/a", labels=LABELS["a"])
    return store


@pytest.fixture(scope="session")
def fine_tuned(built_once: Build) -> Path:
    """A folder with the board and its store; do not change it."""
    return built_once("fine-tuned", fill)
