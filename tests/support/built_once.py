"""Stores that take seconds to make: the first process that needs a store makes it, once for a whole run of tests.

The stores are read-only. A test that damages files takes a real copy (`shutil.copytree`). A test that lets commands add
to a store takes a `linked_copy`: stores replace whole files, so the linked originals stay unchanged.
"""

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from tiny_line import TINY, fill

from coe.board import rules
from coe.lab.workloads import synthetic
from coe.learn import backbones
from coe.store.store import Store
from coe.variants.prepare import Preparer

VARIANTS = ("fp32", "fp16", "q8")
_LARGE = 1 << 20


def linked_copy(source, target):
    """Copy a folder; large files are hard links, so do not write into them."""

    def copy(file, to):
        return os.link(file, to) if os.stat(file).st_size > _LARGE else shutil.copy2(file, to)

    return Path(shutil.copytree(source, target, copy_function=copy))


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """Return a function that gives the folder of a name; the first process that calls it fills the folder."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def build(name, make):
        folder = root / f"built-{name}"
        with FileLock(root / f"built-{name}.lock"):
            if not folder.exists():
                unfinished = root / f"building-{name}"
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return build


@pytest.fixture(scope="session")
def backbone(built_once):
    """The file of the packaged backbone; do not change it."""
    store = Store(built_once("backbone", lambda folder: backbones.add_packaged(Store(folder), "efficientnet-lite0")))
    return store.path("backbones/efficientnet-lite0")


@pytest.fixture(scope="session")
def tiny(built_once):
    """The small board's file and its store; do not change them."""

    def make(folder):
        (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
        fill(Store(folder / "store"), rules.load(folder / "tiny.yaml"))

    folder = built_once("tiny", make)
    return folder / "tiny.yaml", folder / "store"


@pytest.fixture(scope="session")
def prepared_tiny(built_once, tiny):
    """The small board and its store, with each expert prepared in all variants; do not change them."""
    board = rules.load(tiny[0])

    def make(folder):
        store = Store(linked_copy(tiny[1], folder / "store"))
        preparer = Preparer(store, VARIANTS)
        for expert in board.experts.values():
            assert set(preparer.prepare(expert.weights).made) == set(VARIANTS)

    return board, Store(built_once("prepared-tiny", make) / "store")


@pytest.fixture(scope="session")
def synthetic_work(built_once):
    """A folder for trials with four ResNet18 experts of 32 pixels; do not change it."""
    return built_once("synthetic", _synthetic)


@pytest.fixture(scope="session")
def prepared_work(built_once, synthetic_work):
    """The folder of `synthetic_work`, with each expert prepared; do not change it."""

    def make(folder):
        linked_copy(synthetic_work / "store", folder / "store")
        board, store = _synthetic(folder)
        synthetic.prepare(board, store, ("fp32", "q8"), lambda sentence: None)

    return built_once("prepared-synthetic", make)


def _synthetic(folder):
    return synthetic.synthetic_board(folder, kind="narrow", experts=4, input_size=32, seed=0)
