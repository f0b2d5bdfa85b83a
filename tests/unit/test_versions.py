"""Versions of experts and references: kept in whole, gone back to in one step, thinned, whatever fails between."""

import os
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from killed_at_step import killed_at

from coe import config
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import StoreError
from coe.store import bodies, kinds
from coe.store.reference_reader import EncodedReference
from coe.store.references import NewReference, References
from coe.store.store import Store

ID = "b/a"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def put(store, value, id=ID, **more):
    state = {"weight": torch.full((3,), value)}
    return store.put(id, kind="k", labels=["ok", "bad"], input_size=64, state=state, source=str(value), **more)


def value_of(store, id=ID):
    store.check(id)
    return float(store.load(id)["weight"][0])


def test_an_expert_that_is_replaced_is_kept_and_comes_back_as_the_next_version(store):
    assert put(store, 1).version == 1
    first = store.path(ID).stat().st_ino
    assert [put(store, value).version for value in (2, 3)] == [2, 3]
    assert store.history(ID).versions() == [1, 2]
    restored = store.restore(ID, 1)
    assert (restored.version, restored.restored, value_of(store)) == (4, 1, 1)
    assert store.path(ID).stat().st_ino == first, "it shares the bytes"
    assert store.history(ID).versions() == [1, 2, 3]
    assert store.restore(ID, 3).version == 5
    assert value_of(store) == 3


def test_only_the_newest_versions_are_kept(store, monkeypatch):
    for value in range(10):
        put(store, value)
    assert store.history(ID).versions() == list(range(10 - config.KEPT_VERSIONS, 10))
    monkeypatch.setenv(config.KEPT_VERSIONS_VARIABLE, "2")
    put(store, 10)
    assert store.history(ID).versions() == [9, 10]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=100, used=95, free=5))
    put(store, 11)
    assert store.history(ID).versions() == [11]
    monkeypatch.setenv(config.KEPT_VERSIONS_VARIABLE, "0")
    put(store, 12)
    assert not (store.folder(ID) / ".history").exists()
    assert store.manifest(ID).version == 13


def test_a_restore_that_is_killed_anywhere_leaves_a_whole_expert(tmp_path):
    step, was_killed = 0, True
    while was_killed:
        step += 1
        store = Store(tmp_path / str(step))
        for value in (1, 2):
            put(store, value)
        was_killed = killed_at(step, partial(store.restore, ID, 1))
        assert value_of(store) in (1, 2), step
        assert store.restore(ID, 1).version in (3, 4)
        assert value_of(store) == 1
        assert store.earlier(ID, 2).source == "2"
        assert not list(store.root.rglob("*.tmp*")), step
    assert step > 8


def test_a_version_that_is_damaged_or_not_there_replaces_nothing(store):
    for value in (1, 2):
        put(store, value)
    weights = store.history(ID).place(1) / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    with pytest.raises(StoreError, match="checksum"):
        store.restore(ID, 1)
    with pytest.raises(StoreError, match="version 7"):
        store.restore(ID, 7)
    assert (value_of(store), store.manifest(ID).version) == (2, 2)


def test_a_damaged_expert_can_be_gone_back_from(store):
    for value in (1, 2):
        put(store, value)
    (store.folder(ID) / "manifest.json").write_text("{")
    assert store.restore(ID, 1).version == 2
    assert value_of(store) == 1


def test_a_file_system_without_links_keeps_copies(store, monkeypatch):
    def refuse(*given, **more):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for value in (1, 2):
        put(store, value)
    store.restore(ID, 1)
    assert value_of(store) == 1
    store.link("b/twin", ID, labels=("ok", "bad"))
    assert store.check("b/twin").original == ID


def test_bodies_of_earlier_versions_stay(store):
    expert = Expert("a", "narrow", ("ok", "bad"), 32, ID)
    state = kinds.resolve("narrow").skeleton(expert).state_dict()
    for id in (ID, "b/b"):
        own = {name: tensor + (id == ID) if name.startswith("fc") else tensor for name, tensor in state.items()}
        trained = store.put(id, kind="narrow", labels=["ok", "bad"], input_size=32, state=own)
        bodies.divide_frozen(store, trained, ("conv1", "bn1", "layer1"))
    assert (body := store.manifest(ID).body) is not None
    for id in (ID, "b/b"):
        put(store, 5, id)
    bodies.sweep(store)
    assert (store.bodies / body.file).exists()
    assert store.restore(ID, 1).body == body
    store.check(ID)


def reference(level):
    import cv2

    image = cv2.imencode(".png", np.full((8, 8, 3), level, np.uint8))[1].tobytes()
    spread = cv2.imencode(".png", np.zeros((8, 8), np.uint8))[1].tobytes()
    return NewReference(EncodedReference(image, spread), 8, 8, 1, source=f"level {level}")


def test_a_reference_has_versions_too(store):
    references = References(store)
    made = [references.put("b/U1", reference(level)).checksum for level in (10, 20)]
    assert references.restore("b/U1", 1).version == 3
    assert references.manifest("b/U1").checksum == made[0]
    references.load("b/U1")
    with pytest.raises(StoreError, match="version 9"):
        references.restore("b/U1", 9)


def test_the_commands_show_restore_and_thin(store, call):
    for value in (1, 2, 3):
        put(store, value)
    References(store).put("b/U1", reference(10))
    References(store).put("b/U1", reference(20))
    at = ("--store", store.root)
    shown = call("history", ID, *at, command=experts_command)
    assert shown.status == 0
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["1", "2", "3"]
    assert call("restore", f"{ID}@1", *at, command=experts_command).status == 0
    assert value_of(store) == 1
    assert call("restore", "references/b/U1@1", *at, command=experts_command).status == 0
    assert References(store).manifest("b/U1").version == 3
    assert call("restore", ID, *at, command=experts_command).status == 2
    assert call("restore", f"{ID}@9", *at, command=experts_command).status == 2
    assert call("history", "b/none", *at, command=experts_command).status == 2
    assert call("history", ID, "--keep", "1", *at, command=experts_command).status == 0
    assert store.history(ID).versions() == [3]
    assert call("history", "references/b/U1", "--keep", "0", *at, command=experts_command).status == 0
    assert References(store).history("b/U1").versions() == []
