"""`coe-experts` with experts that share a body: what it says, and that every command sees them whole."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from built_once import linked_copy
from common_trunk import IDS, TRUNK
from PIL import Image
from tiny_line import Call

from coe.cli import experts_command
from coe.store.manifest import Manifest
from coe.store.store import Store


@pytest.fixture
def store(prepared_trunk: Path, tmp_path: Path) -> Store:
    return Store(linked_copy(prepared_trunk, tmp_path / "store"))


def test_share_says_what_it_saves_and_list_shows_it(store: Store, call: Call) -> None:
    said = call("list", "--store", store.root, command=experts_command)
    assert "with bodies" not in said.out
    said = call("share", "trunk", "--store", store.root, command=experts_command)
    assert said.status == 0
    assert "3 experts share 1 body: 20.8 MiB as whole experts, 16.4 MiB with bodies" in said.out
    assert "3 experts were changed" in said.out
    said = call("list", "--store", store.root, command=experts_command)
    rows = [" ".join(line.split()) for line in said.out.splitlines()]
    assert any(row.startswith("stored, as trained 4 20.8 MiB 16.4 MiB") and row.endswith(" 1") for row in rows)
    assert any(row.startswith("in memory, q8 4") for row in rows)
    said = call("share", "trunk", "--store", store.root, command=experts_command)
    assert "0 experts were changed" in said.out


def test_share_goes_on_after_a_damaged_expert_and_names_it(store: Store, call: Call) -> None:
    store.path("trunk/b").unlink()
    said = call("share", "trunk", "--store", store.root, command=experts_command)
    assert said.status == 1
    assert "trunk/b: weights.safetensors cannot be read" in said.words
    assert "2 experts share 1 body" in said.out
    said = call("share", "nothing", "--store", store.root, command=experts_command)
    assert said.status == 2


def test_a_shared_expert_is_verified_exported_and_imported_as_a_whole(
    shared_trunk: Path, call: Call, tmp_path: Path
) -> None:
    store, file = Store(shared_trunk), tmp_path / "a.safetensors"
    said = call("verify", *IDS, "--store", store.root, command=experts_command)
    assert (said.status, said.out.splitlines()[-1]) == (0, "4 sound, 0 damaged")
    assert call("export", "trunk/a", file, "--store", store.root, command=experts_command).status == 0
    other = Store(tmp_path / "other")
    options = ("--kind", "narrow", "--input", 32, "--labels", "ok,bad", "--no-prepare", "--store", other.root)
    assert call("import", "line7/a", file, *options, command=experts_command).status == 0
    again, before = other.load("line7/a"), store.load("trunk/a")
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], before[name]) for name in before)
    said = call(
        "export", "trunk/a", tmp_path / "none" / "a.safetensors", "--store", store.root, command=experts_command
    )
    assert said.status == 2
    assert "cannot be written" in said.words


def training(data: Path, store: Store) -> tuple[object, ...]:
    """Make pictures of two labels, and return the options of a short training."""
    noise = np.random.default_rng(1)
    for label in ("ok", "bad"):
        (data / label).mkdir(parents=True)
        for number in range(4):
            pixels = noise.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(data / label / f"{number}.png")
    options = ("--kind", "narrow", "--input", 32, "--data", data, "--epochs", 1, "--no-prepare")
    return (*options, "--store", store.root)


def test_a_trained_expert_that_cannot_share_is_stored_whole_and_the_reason_is_said(
    store: Store, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is removed during the training."""
    options, put = training(tmp_path / "data", store), Store.put

    def removing(self: Store, weights: str, **facts: Any) -> Manifest:
        shutil.rmtree(self.folder("trunk/b"))
        return put(self, weights, **facts)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "put", removing)
        said = call(
            "train", "trunk/e", *options, "--body", "trunk/b", "--freeze", ",".join(TRUNK), command=experts_command
        )
    assert said.status == 1
    assert "no expert 'trunk/b'" in said.words
    assert "trunk/e is stored whole, and `coe-experts share trunk` may divide it later" in said.words
    assert store.check("trunk/e").body is None


def test_training_from_a_body_shares_its_frozen_layers_and_says_what_that_saves(
    store: Store, call: Call, tmp_path: Path
) -> None:
    options = training(tmp_path / "data", store)
    frozen = ("--body", "trunk/a", "--freeze", ",".join(TRUNK))
    before = store.manifest("trunk/a")
    said = call("train", "trunk/e", *options, *frozen, command=experts_command)
    assert said.status == 0, said.err
    sentence = "trunk/e: 2.2 MiB of its 5.2 MiB are a body, stored and loaded once for 1 expert; trunk/a holds the same"
    assert sentence in said.out
    assert store.manifest("trunk/a") == before
    call("share", "trunk", "--store", store.root, command=experts_command)
    # From an expert that is divided, too: training sees it whole.
    said = call("train", "trunk/f", *options, *frozen, command=experts_command)
    assert "are a body, stored and loaded once for 5 experts" in said.out
    trained, parent = store.load("trunk/f"), store.load("trunk/a")
    assert all(torch.equal(trained[name], parent[name]) for name in parent if name.startswith(TRUNK))
    assert not torch.equal(trained["deep.0.weight"], parent["deep.0.weight"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--body", "trunk/a"), "--body and --freeze belong together"),
        (("--freeze", "conv1"), "--body and --freeze belong together"),
        (("--body", "trunk/a", "--freeze", "conv1,"), "--freeze: a name is empty in 'conv1,'"),
        (("--body", "trunk/a", "--freeze", "conv1", "--init", "trunk/b"), "leave --init out"),
        (("--body", "trunk/a", "--freeze", "stem"), "'stem' cannot be frozen"),
        (("--body", "trunk/x", "--freeze", "conv1"), "no expert 'trunk/x'"),
    ],
)
def test_a_wrong_body_is_refused(store: Store, call: Call, tmp_path: Path, options: tuple, words: str) -> None:
    data = tmp_path / "data"
    for label in ("ok", "bad"):
        (data / label).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(data / label / f"{number}.png")
    options = ("--kind", "narrow", "--input", 32, "--data", data, "--store", store.root, *options)
    said = call("train", "trunk/e", *options, command=experts_command)
    assert said.status == 2
    assert words in said.words
