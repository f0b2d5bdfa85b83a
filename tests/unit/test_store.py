"""The store: experts, their variants, damage, full disks and writers at the same time."""

import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import safetensors
import torch
from full_disk import disk_of

from coe.config import KEPT_VERSIONS_VARIABLE
from coe.errors import StoreError
from coe.helpers.files import alone
from coe.store.store import Store
from coe.store.store_reader import MANIFEST
from coe.store.tensor_files import load_tensors
from coe.store.weights_file import checksum

STATE = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.ones(2, dtype=torch.float16)}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def put(store, weights="demo/a", **changes):
    return store.put(weights, **{"kind": "k", "labels": ["ok", "bad"], "input_size": 64, "state": STATE, **changes})


def test_what_is_put_is_read_again(store):
    made = put(store, metrics={"accuracy": 0.98}, source="here")
    assert made == store.manifest("demo/a") == store.check("demo/a")
    assert (made.id, made.labels, made.file) == ("demo/a", ("ok", "bad"), "weights.safetensors")
    assert made.metrics == {"accuracy": 0.98}
    put(store, "demo/odd", metrics={"loss": math.nan, "bound": math.inf})
    assert str(store.manifest("demo/odd").metrics) == "{'loss': nan, 'bound': inf}"
    assert made.bytes == store.path("demo/a").stat().st_size
    assert made.checksum == checksum(store.path("demo/a"))
    again = store.load("demo/a")
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in again.items()} == {
        name: (tensor.dtype, tensor.tolist()) for name, tensor in STATE.items()
    }


def test_what_lies_in_a_store_may_be_read_files_as_they_are_and_tensors_in_any_order(store, tmp_path):
    put(store)
    (tmp_path / "usual").touch()
    modes = {path.stat().st_mode for path in store.folder("demo/a").iterdir()}
    assert modes == {(tmp_path / "usual").stat().st_mode}
    source = tmp_path / "model.onnx"
    source.write_bytes(b"onnx")
    put(store, "demo/copy", state=None, file=source)
    assert (store.path("demo/copy").name, store.path("demo/copy").read_bytes()) == ("weights.onnx", b"onnx")
    base = torch.arange(6.0)
    put(store, state={"a": base, "b": base, "c": base.reshape(2, 3).T})
    assert store.load("demo/a")["c"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_linked_expert_and_a_reader_keep_the_file_while_another_takes_its_place(store):
    original = put(store, "demo/a")
    linked = store.link("demo/b", "demo/a", labels=("yes", "no"))
    assert (linked.id, linked.labels, linked.checksum) == ("demo/b", ("yes", "no"), original.checksum)
    assert store.path("demo/b").stat().st_ino == store.path("demo/a").stat().st_ino
    put(store, "demo/a")
    assert store.check("demo/b") == linked
    put(store)
    with safetensors.safe_open(store.path("demo/a"), "pt") as reader:
        put(store, state={"weight": torch.full((2, 3), 7.0)})
        assert reader.get_tensor("weight").tolist() == STATE["weight"].tolist()
    assert store.load("demo/a")["weight"].tolist() == [[7.0] * 3] * 2
    assert store.check("demo/a").id == "demo/a"


def test_ids_are_sorted_and_what_is_half_written_is_not_among_them(store):
    assert store.ids() == []
    for weights in ("demo/b", "demo/a", "lonely", "A/x.1+2_3-4"):
        put(store, weights)
    for half in (".put-x", "demo/.old-y"):
        (store.root / half).mkdir()
        (store.root / half / MANIFEST).write_text("{}")
    assert store.ids() == ["A/x.1+2_3-4", "demo/a", "demo/b", "lonely"]
    assert repr(store) == f"<Store {store.root}, 4 experts>"


def test_of_two_writers_of_an_expert_the_second_waits(store):
    put(store)
    with ThreadPoolExecutor(1) as pool:
        with alone(store.folder("demo/a")):
            second = pool.submit(put, store, metrics={"accuracy": 0.5})
            assert not wait([second], 0.2).done
        assert second.result(30) == store.manifest("demo/a")


def test_nothing_is_left_beside_an_expert_if_no_version_is_kept(store, monkeypatch):
    monkeypatch.setenv(KEPT_VERSIONS_VARIABLE, "0")
    for file in ("weights.safetensors", "weights-2.safetensors", "weights.safetensors"):
        put(store)
        assert sorted(path.name for path in store.root.rglob("*")) == ["a", "demo", MANIFEST, file]


def test_an_unknown_expert_is_named_with_a_suggestion(store):
    put(store, "demo/chip-resistor")
    with pytest.raises(StoreError, match=r"'demo/chip-resistr'.*'demo/chip-resistor'"):
        store.path("demo/chip-resistr")


OUTSIDE = ["", ".", "..", "../a", "a/..", "a/../b", "/etc/passwd", "a/b/c", "a//b", "a/", ".hidden", "a/.b"]


@pytest.mark.parametrize("weights", [*OUTSIDE, "a\0b", "a\nb", "a b", "a..b"])
def test_an_id_that_could_leave_the_store_is_refused(store, weights):
    for use in (store.folder, store.manifest, store.path, store.check, store.load, lambda id: put(store, id)):
        with pytest.raises(StoreError, match="is not an expert id"):
            use(weights)


@pytest.mark.parametrize("file", ["../b/weights.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\0b"])
def test_a_manifest_that_names_a_file_or_a_blob_outside_its_folder_is_refused(store, file):
    put(store)
    path = store.folder("demo/a") / MANIFEST
    sound = json.loads(path.read_text())
    blob = {"file": file, "bytes": 1, "digest": "", "agreement": None, "escalate_below": 0.0}
    for change in ({"file": file}, {"variants": {"fp32": blob}}):
        path.write_text(json.dumps(sound | change))
        for use in (store.path, store.check, store.load):
            with pytest.raises(StoreError, match="outside"):
                use("demo/a")


CHANGES = [{"format": 3}, {"format": None}, {"bytes": "many"}, {"labels": None}, {"surprise": 1}]
RAW = [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"id": "demo/a"}']


@pytest.mark.parametrize("change", [*CHANGES, *RAW], ids=lambda change: str(change)[:20])
def test_a_manifest_that_is_damaged_or_of_another_version_is_refused(store, change):
    put(store)
    path = store.folder("demo/a") / MANIFEST
    if isinstance(change, bytes):
        path.write_bytes(change)
        words = "demo/a"
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        words = r"manifest\.json.*" + ("newer version" if "surprise" in change else "")
    with pytest.raises(StoreError, match=words):
        store.manifest("demo/a")


def test_a_file_that_is_damaged_truncated_or_missing_is_told(store):
    put(store)
    path = store.path("demo/a")
    whole = path.read_bytes()
    for raw, fault in ((whole[:-1] + bytes([whole[-1] ^ 1]), "checksum"), (whole[:-3], "truncated")):
        path.write_bytes(raw)
        with pytest.raises(StoreError, match=rf"demo/a: weights\.safetensors.*{fault}"):
            store.check("demo/a")
    with pytest.raises(StoreError, match=r"weights\.safetensors"):
        store.load("demo/a")
    path.unlink()
    with pytest.raises(StoreError, match=r"demo/a: weights\.safetensors.*No such file"):
        store.check("demo/a")


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was opened')",))


@pytest.mark.parametrize(
    "make", [lambda path: path.write_bytes(pickle.dumps(Bomb())), lambda path: torch.save(Bomb(), path)]
)
def test_a_pickle_with_another_name_is_refused_and_never_opened(tmp_path, make):
    path = tmp_path / "weights.safetensors"
    make(path)
    with pytest.raises(StoreError, match=r"weights\.safetensors"):
        load_tensors(path)


def test_a_full_disk_leaves_the_expert_that_was_there(store, tmp_path):
    old = put(store)
    big = tmp_path / "big.onnx"
    big.write_bytes(bytes(1 << 20))
    for content in ({"state": {"weight": torch.zeros(1 << 20)}}, {"state": None, "file": big}):
        with disk_of(1 << 16), pytest.raises(StoreError, match="demo/a: cannot be written to"):
            put(store, **content)
    assert store.check("demo/a") == old
    assert [path.name for path in (store.root / "demo").iterdir()] == ["a"]


def test_a_root_that_cannot_be_written_is_named_and_it_is_that_of_the_variable_else_store(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    with pytest.raises(StoreError, match=r"demo/a.*(Not a directory|File exists)"):
        put(store)
    assert store.ids() == []
    with pytest.raises(StoreError, match="Not a directory"):
        store.manifest("demo/a")
    monkeypatch.delenv("COE_STORE", raising=False)
    assert Store().root == Path("store")
    monkeypatch.setenv("COE_STORE", str(tmp_path))
    assert Store().root == tmp_path


NEITHER = r"demo/a: .*tensors or a file"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"state": None, "file": None}, NEITHER),
        ({"file": Path("x")}, NEITHER),
        ({"state": None, "file": Path("gone.onnx")}, r"demo/a.*gone\.onnx"),
    ],
)
def test_tensors_or_a_file_that_is_there_must_be_given(store, given, words):
    with pytest.raises(StoreError, match=words):
        put(store, **given)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        *[(id, "Windows") for id in ("con", "demo/NUL", "aux/a", "demo/com1.v2", "demo/a.", "demo./a")],
        *[(id, "differs only in case") for id in ("demo/A", "Demo/b", "DEMO")],
        ("demo", "'demo/<expert>'"),  # a board is never replaced by an expert of its name
        ("lonely/a", "'lonely' is an expert"),
    ],
)
def test_an_id_that_is_no_name_on_windows_or_is_another_ones_is_not_put(store, weights, words):
    before = put(store)
    put(store, "lonely")
    with pytest.raises(StoreError, match=words):
        put(store, weights)
    assert store.ids() == ["demo/a", "lonely"]
    assert store.check("demo/a") == before
    for like in ("demo/console", "demo/com", "demo/a.con", "demo/com10"):
        assert put(store, like).id == like
