"""A board of two small networks and one file that its kind opens itself, in a store to damage; nothing is measured."""

import json

import numpy as np
import torch

from coe.core import FULL, Finding
from coe.inspector.precision import LineCosts, VariantChoice
from coe.scheduler.costs import Cost
from coe.store import variants
from coe.store.kinds import ExpertInput, FileKind, ModuleKind
from coe.store.manifest import Agreement
from coe.store.store import Store
from coe.store.store_reader import MANIFEST
from coe.store.weights_file import checksum, header
from coe.variants.fold import Folded
from coe.variants.layout import lay_out

SIZE = 8
LABELS = ("ok", "bad")
BOARD = """
board: t
experts:
  a: {kind: small, labels: [ok, bad], input: 8}
  b: {kind: small, labels: [ok, bad], input: 8}
  c: {kind: filed, labels: [ok, bad], input: 8}
components:
  A: {inspect: a, then: {ok: OK, bad: NG}}
  B: {inspect: b, then: {ok: OK, bad: NG}}
  C: {inspect: c, then: {ok: OK, bad: NG}}
"""
COSTS = LineCosts(
    {("cpu", name, FULL): Cost(0.001, 0.001, 0.001, 4 << 20, 4096) for name in "abc"},
    VariantChoice(dict.fromkeys("abc", FULL), {}),
)
"""As if each took 4 MiB: of the memory that tests give, one at a time fits, so that experts are loaded all the time."""


class _Both:
    task = "classify"

    def preprocess(self, image, expert):
        return ExpertInput(np.zeros((3, SIZE, SIZE), np.uint8), *image.shape[:2])

    def postprocess(self, outputs, prepared, expert):
        return [
            Finding(expert=expert.id, variant=expert.variant, label=expert.labels[int(np.argmax(row))], score=0.9)
            for row in np.asarray(outputs)
        ]


class Small(_Both, ModuleKind):
    """One layer, whose bias decides."""

    name = "small"

    def skeleton(self, expert):
        module = torch.nn.Module()
        module.fc = torch.nn.Linear(12, len(expert.labels))
        return module

    def forward(self, module, images):
        return module.fc(torch.zeros(len(images), 12) + images.float().mean() * 0)


class Filed(_Both, FileKind):
    """The last byte of the file is the label. `read` is called whenever a file is opened by its path."""

    name, suffix = "filed", ".bin"

    def open(self, path, expert, threads):
        return _Session(path.read_bytes())


class _Session:
    def __init__(self, data):
        self.label = data[-1] % 2

    def run(self, images):
        return np.tile(np.eye(2)[self.label], (len(images), 1))


KINDS = {"small": Small(), "filed": Filed()}


def state(label="ok"):
    said = torch.tensor([1.0, 0.0] if label == "ok" else [0.0, 1.0])
    return {"fc.weight": torch.zeros(2, 12), "fc.bias": said}


def put(store, name, label="ok", **changes):
    said = {"kind": "small", "labels": LABELS, "input_size": SIZE, "state": state(label)}
    store.put(name, **{**said, **changes})


def put_filed(store, folder, label="ok"):
    file = folder / "model.bin"
    file.write_bytes(b"a model" * 100 + bytes([LABELS.index(label)]))
    store.put("t/c", kind="filed", labels=LABELS, input_size=SIZE, file=file)


def filled(folder):
    """Write the board and its store: a and c say `ok`, b says `bad`."""
    board, store = folder / "t.yaml", Store(folder / "store")
    board.write_text(BOARD, encoding="utf-8")
    put(store, "t/a")
    put(store, "t/b", "bad")
    put_filed(store, folder)
    return board, store


def prepare(store, name, variant="fp32"):
    """Put a blob beside an expert's weights; return its path."""
    with store.changing(name) as manifest:
        made = lay_out(
            Folded(store.load(name), ()),
            variant,
            kind=manifest.kind,
            labels=2,
            identity=header(store.path(name)).identity,
        )
        agreement = Agreement(images=1, labels_equal=1.0, largest_score_difference=0.0)
        done = variants.put(store, manifest, made.bytes, agreement=agreement, escalate_below=0.0)
    return store.folder(name) / done.variants[variant].file


def edit(store, name, **changes):
    path = store.folder(name) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def agree(store, name):
    """Let a manifest state the size and the checksum of its weights file as that is now."""
    path = store.path(name)
    edit(store, name, bytes=path.stat().st_size, checksum=checksum(path))
