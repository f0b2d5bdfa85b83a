"""Experts with a common trunk: as if fine-tuned from one network whose first layers were frozen."""

import pytest
import torch
from built_once import linked_copy

from coe.core import Expert
from coe.store import bodies, kinds, skeletons
from coe.store.manifest import Agreement
from coe.store.store import Store
from coe.store.variants import put
from coe.store.weights_file import header
from coe.variants.fold import fold
from coe.variants.layout import lay_out

TRUNK = ("conv1", "bn1", "layer1", "layer2", "layer3", "wide")
BOARD = """
board: trunk
experts:
  a: {kind: narrow, labels: [ok, bad], input: 32}
  b: {kind: narrow, labels: [ok, bad], input: 32}
  c: {kind: narrow, labels: [ok, bad, worse], input: 32}
  d: {kind: narrow, labels: [ok, bad], input: 32}
components:
  A: {count: 4, inspect: a, then: {ok: OK, bad: NG}}
  B: {count: 3, inspect: b, then: {ok: OK, bad: NG}}
  C: {count: 2, inspect: c, then: {ok: OK, bad: NG, worse: NG}}
  D: {count: 1, inspect: d, then: {ok: OK, bad: NG}}
"""
"""`a`, `b` and `c` have one trunk; `d` was trained by itself."""
AGREEMENT = Agreement(images=1, labels_equal=1.0, largest_score_difference=0.0)
IDS = [f"trunk/{name}" for name in "abcd"]
LABELS = {"a": ("ok", "bad"), "b": ("ok", "bad"), "c": ("ok", "bad", "worse"), "d": ("ok", "bad")}


def weights(name):
    """Return the trained tensors of an expert; statistics of batch norms differ from their initial values."""
    kind = kinds.resolve("narrow")
    expert = Expert(name, "narrow", LABELS[name], 32, f"trunk/{name}")
    state = skeletons.random_weights(kind, expert, seed=ord(name))
    if name != "d":
        common = skeletons.random_weights(kind, Expert("x", "narrow", ("ok", "bad"), 32, ""), seed=0)
        state |= {key: value for key, value in common.items() if key.startswith(TRUNK)}
    chance = torch.Generator().manual_seed(7 if name != "d" else 8)
    for key, value in state.items():
        if key.endswith("running_mean"):
            state[key] = 0.1 * torch.randn(value.shape, generator=chance)
    return state


def fill(folder, *prepared):
    """Put the experts of the board into a store in a folder, with blobs of the variants named; and its file there."""
    (folder / "trunk.yaml").write_text(BOARD, encoding="utf-8")
    store = Store(folder / "store")
    for name, labels in LABELS.items():
        id = f"trunk/{name}"
        store.put(id, kind="narrow", labels=labels, input_size=32, state=weights(name))
        for variant in prepared:
            put_blob(store, Expert(name, "narrow", labels, 32, id), variant)
    return store


def put_blob(store, expert, variant):
    """Put a variant of an expert beside its weights."""
    own = header(store.path(expert.weights)).identity
    folded = fold(kinds.resolve(expert.kind), expert, store.load(expert.weights))
    made = lay_out(folded, variant, kind=expert.kind, labels=len(expert.labels), identity=own)
    with store.changing(expert.weights) as manifest:
        put(store, manifest, made.bytes, agreement=AGREEMENT, escalate_below=0.0)


def share(store, *ids):
    """Divide experts, or all three with the common trunk, as trainings that froze it do."""
    for id in ids or IDS[:3]:
        bodies.divide_frozen(store, store.manifest(id), TRUNK)


@pytest.fixture(scope="session")
def prepared_trunk(built_once):
    """A store of whole experts with a common trunk, in two variants; do not change it."""
    return built_once("trunk", lambda folder: fill(folder, "fp32", "q8")) / "store"


@pytest.fixture(scope="session")
def shared_trunk(prepared_trunk, built_once):
    """The same experts, three with one body, as their trainings would have left them; do not change them."""

    def make(folder):
        share(Store(linked_copy(prepared_trunk, folder / "store")))

    return built_once("shared-trunk", make) / "store"
