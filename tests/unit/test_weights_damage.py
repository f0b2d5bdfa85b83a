"""Weights that lie: of another expert, with a header that makes no sense, of another shape. Each is one StoreError.

The manifest states their size and checksum, as if somebody had mended it by hand: damage on the way is told by these.
"""

import json
import struct

import pytest
import torch
import xxhash
from small_experts import KINDS, LABELS, SIZE, agree, edit, filled, prepare, put, put_filed, state

from coe.bring.verification import verify
from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.cpu import CpuDevice
from coe.store import blob_format, blob_writing, kinds, runnable_kinds, safetensors_header
from coe.store.blob_format import Identity
from coe.store.store_reader import Snapshot


@pytest.fixture(autouse=True)
def _small_kinds(monkeypatch):
    for module in (kinds, runnable_kinds):
        monkeypatch.setattr(module, "resolve", lambda name, allowed=(): KINDS[name])


@pytest.fixture
def store(tmp_path):
    return filled(tmp_path)[1]


def load(store, name="t/a", variant="fp32"):
    kind = "filed" if name == "t/c" else "small"
    expert = Expert(name[-1], kind, LABELS, SIZE, name, variant=variant)
    CpuDevice(store, KINDS, 1).load("p", expert)


def refused(store, said, name="t/a"):
    """Both ways of reading say so: `verify`, and the load of a line."""
    with pytest.raises(StoreError, match=said):
        verify(store, store.check(name))
    with pytest.raises(StoreError, match=said):
        load(store, name)


def test_two_experts_whose_folders_are_swapped_are_refused(store):
    one, other, aside = store.folder("t/a"), store.folder("t/b"), store.root / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    refused(store, "'t/b', not of 't/a'")
    refused(store, "'t/a', not of 't/b'", "t/b")


@pytest.mark.parametrize("id", ["t/b", "../../x", "", "t/a/", "T/a", "t", "/etc/passwd", "[red]x", "x" * 5000, "t/a\0"])
def test_a_manifest_of_another_id_is_refused(store, id):
    edit(store, "t/a", id=id)
    refused(store, "the manifest is that of expert")


@pytest.mark.parametrize("prepared", [False, True])
def test_a_manifest_that_was_made_to_fit_does_not_make_the_weights_fit(store, prepared):
    """The folder of b in the place of a's, its manifest edited by hand."""
    if prepared:
        prepare(store, "t/b", "fp32")
    for path in store.folder("t/a").iterdir():
        path.unlink()
    for path in store.folder("t/b").iterdir():
        path.rename(store.folder("t/a") / path.name)
    edit(store, "t/a", id="t/a")
    refused(store, "'t/b', not for 't/a'")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": ["bad", "ok"]}, "for a small of 8 pixels for ok, bad, but the manifest says otherwise"),
        ({"labels": ["ok", "scratch"]}, "was made for a small of 8 pixels for ok, bad"),
        ({"input_size": 16}, "was made for a small of 8 pixels"),
        ({"original": "t/b"}, "was made for expert 't/a', not for 't/b'"),
        ({"original": "../../x"}, "was made for expert 't/a', not for"),
    ],
)
def test_a_manifest_that_says_otherwise_than_its_weights_is_refused(store, change, said):
    edit(store, "t/a", **change)
    refused(store, said)


def test_a_blob_of_another_expert_is_refused(store):
    blob, prepared = prepare(store, "t/b"), None
    prepared = store.manifest("t/b").variants["fp32"].model_dump()
    (store.folder("t/a") / blob.name).write_bytes(blob.read_bytes())
    edit(store, "t/a", variants={"fp32": prepared})
    with pytest.raises(StoreError, match="'t/b', not for 't/a'"):
        store.check("t/a")
    with pytest.raises(StoreError, match="'t/b', not for 't/a'"):
        load(store, variant="fp32")


def test_experts_that_share_files_on_purpose_are_sound(store):
    prepare(store, "t/a")
    store.link("t/twin", "t/a", labels=("fine", "broken"))
    store.link("t/third", "t/twin", labels=("good", "worse"))
    for name in ("t/twin", "t/third"):
        assert verify(store, store.check(name)) == ""
        assert store.manifest(name).original == "t/a"
    put(store, "t/twin")
    assert store.manifest("t/twin").original == ""
    with pytest.raises(StoreError, match="its own files"):
        store.link("t/a", "t/a", labels=LABELS)


def test_a_file_that_its_kind_opens_is_opened_from_the_bytes_that_were_proved(store, tmp_path, monkeypatch):
    """The file is another one as soon as it was proved."""
    proved = KINDS["filed"].open_bytes

    def replaced(weights, path, expert, threads):
        path.write_bytes(b"another model\1")
        return proved(weights, path, expert, threads)

    monkeypatch.setattr(KINDS["filed"], "open_bytes", replaced)
    with pytest.raises(StoreError, match="changed while it was opened"):
        load(store, "t/c")
    monkeypatch.undo()
    put_filed(store, tmp_path)


SOUND = {
    "fc.weight": {"dtype": "F32", "shape": [2, 12], "data_offsets": [0, 96]},
    "fc.bias": {"dtype": "F32", "shape": [2], "data_offsets": [96, 104]},
}


def weight(**changes):
    return {**SOUND, "fc.weight": {**SOUND["fc.weight"], **changes}}


def without(key):
    return {**SOUND, "fc.weight": {name: value for name, value in SOUND["fc.weight"].items() if name != key}}


def offsets(text):
    return json.dumps(weight(data_offsets="@")).replace('"@"', text)


def of(**changes):
    made_for = Identity(id="t/a", kind="small", labels=LABELS, input_size=SIZE)
    return {**SOUND, "__metadata__": safetensors_header.metadata(made_for.model_copy(update=changes))}


NO_SENSE = "has a header that makes no sense"
SENSE = {
    "overlap": (weight(data_offsets=[8, 104]), 104, "overlaps another tensor|leaves a gap"),
    "gap": ({**SOUND, "fc.bias": {**SOUND["fc.bias"], "data_offsets": [100, 108]}}, 108, "leaves a gap"),
    "backwards": (weight(data_offsets=[96, 0]), 104, NO_SENSE),
    "odd": (weight(data_offsets=[1, 97]), 105, "is not aligned"),
    "askew-behind-bytes": (
        {
            "x": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
            "fc.bias": {**SOUND["fc.bias"], "data_offsets": [2, 10]},
        },
        10,
        "is not aligned",
    ),
    "turned": (weight(shape=[12, 2]), 104, r"'fc.weight' is \(12, 2\) torch.float32, not \(2, 12\)"),
    "one-more-axis": (weight(shape=[1, 2, 12]), 104, r"'fc.weight' is \(1, 2, 12\)"),
    "another-type": (weight(dtype="I32"), 104, r"'fc.weight' is \(2, 12\) torch.int32"),
    "half": (weight(dtype="F16", shape=[4, 12]), 104, r"'fc.weight' is \(4, 12\) torch.float16"),
    "more-labels": (weight(shape=[3, 12], data_offsets=[0, 144]), 152, "overlaps|leaves a gap"),
    "missing": ({"fc.weight": SOUND["fc.weight"]}, 96, "lack 'fc.bias'; they belong to another kind"),
    "unknown": (
        {**SOUND, "more": {"dtype": "F32", "shape": [1], "data_offsets": [104, 108]}},
        108,
        "hold 'more', which the kind does not know",
    ),
    "renamed": ({"FC.weight": SOUND["fc.weight"], "fc.bias": SOUND["fc.bias"]}, 104, "lack 'fc.weight'"),
    "empty-name": ({"": SOUND["fc.weight"], "fc.bias": SOUND["fc.bias"]}, 104, "lack 'fc.weight'"),
    "nothing": ({}, 0, "lack 'fc.weight'"),
    "one-byte-more": (SOUND, 105, "ends too early or too late"),
    "twice": (json.dumps(SOUND)[:-1] + ', "fc.bias": ' + json.dumps(SOUND["fc.bias"]) + "}", 104, "occurs twice"),
    "twice-inside": (json.dumps(SOUND).replace('"dtype"', '"dtype": "I32", "dtype"', 1), 104, "occurs twice"),
    "twice-metadata": ('{"__metadata__": {}, "__metadata__": {}}', 0, "occurs twice"),
    "brackets": ("[" * 200_000, 104, "nested too deeply"),
    "braces": ('{"a":' * 200_000, 104, "nested too deeply"),
    "empty": ("", 104, NO_SENSE),
    "null": ("null", 104, "not a table"),
    "list": ("[1, 2]", 104, "not a table"),
    "not-utf-8": (b'{"\xff\xfe": 1}', 104, NO_SENSE),
    "nan": (offsets("[NaN, 96]"), 104, NO_SENSE),
    "infinite": (offsets("[0, 1e999]"), 104, "not whole numbers"),
    "huge": (offsets(f"[0, {10**30}]"), 104, "do not fit its shape"),
    "5000-digits": (offsets(f"[0, {'9' * 5000}]"), 104, NO_SENSE),
    "float": (offsets("[0.0, 96.0]"), 104, "not whole numbers"),
    "true": (offsets("[false, true]"), 104, "not whole numbers"),
    "one": (offsets("[96]"), 104, "not whole numbers"),
    "no-offsets": (without("data_offsets"), 104, "must give dtype, shape and data_offsets"),
    "no-dtype": (without("dtype"), 104, "must give dtype, shape and data_offsets"),
    "more-keys": (weight(strides=[12, 1]), 104, "must give dtype, shape and data_offsets"),
    "shape-of-lists": (weight(shape=[[2], [12]]), 104, "not whole numbers"),
    "shape-below-zero": (weight(shape=[-2, -12]), 104, "not whole numbers"),
    "shape-huge": (weight(shape=[2**62, 2**62]), 104, "do not fit its shape"),
    "shape-of-1000-axes": (weight(shape=[1] * 1000 + [24]), 104, r"'fc.weight' is \(1, 1"),
    "unknown-type": (weight(dtype="F8_E4M3"), 104, NO_SENSE),
    "our-own-type": (weight(dtype="Q8"), 104, "do not fit its shape"),
    "no-type": (weight(dtype=None), 104, NO_SENSE),
    "tensor-is-a-number": ({**SOUND, "fc.bias": 3}, 104, "must give dtype, shape and data_offsets"),
    "metadata-list": ({**SOUND, "__metadata__": [1]}, 104, "metadata are not text"),
    "metadata-numbers": ({**SOUND, "__metadata__": {"coe": 1}}, 104, "metadata are not text"),
    "metadata-no-json": ({**SOUND, "__metadata__": {"coe": "{"}}, 104, NO_SENSE),
    "metadata-brackets": ({**SOUND, "__metadata__": {"coe": "[" * 100_000}}, 104, NO_SENSE),
    "metadata-half": ({**SOUND, "__metadata__": {"coe": '{"id": "t/a"}'}}, 104, NO_SENSE),
    "of-another": (of(id="t/b"), 104, "'t/b', not for 't/a'"),
    "of-another-kind": (of(kind="other"), 104, "was made for a other of 8 pixels"),
    "labels-swapped": (of(labels=("bad", "ok")), 104, "was made for a small of 8 pixels for bad, ok"),
}


@pytest.mark.parametrize("case", SENSE)
def test_a_header_that_makes_no_sense_is_refused(store, case):
    header, data_bytes, said = SENSE[case]
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    store.path("t/a").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(data_bytes))
    agree(store, "t/a")
    refused(store, said)


@pytest.mark.parametrize("length", [1, 7, 96, 104, 2**16, 2**31, 2**32, 2**62, 2**63, 2**64 - 1])
def test_any_length_of_a_header_is_met(store, length):
    raw = json.dumps(SOUND).encode()
    store.path("t/a").write_bytes(struct.pack("<Q", length) + raw + bytes(104))
    agree(store, "t/a")
    refused(store, "safetensors|header")


@pytest.mark.parametrize("keep", [0, 1, 7, 8])
def test_a_file_without_a_whole_header_is_refused(store, keep):
    store.path("t/a").write_bytes(store.path("t/a").read_bytes()[:keep])
    agree(store, "t/a")
    refused(store, "t/a")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("tensor", ["fc.weight", "fc.bias"])
def test_numbers_that_are_not_finite_are_told_by_verify(store, tensor, number):
    made = state()
    made[tensor].view(-1)[1] = number
    put(store, "t/a", state=made)
    with pytest.raises(StoreError, match=f"'{tensor}'.*not finite"):
        verify(store, store.check("t/a"))


def test_what_safetensors_writes_is_read_and_a_line_keeps_to_the_variants_that_it_was_opened_with(store):
    """Tensors of every type and of odd sizes, in any order: its own writer leaves no gaps and nothing askew."""
    made = {
        f"{name}{number}": torch.zeros(number, dtype=dtype)
        for name, dtype in {"a": torch.uint8, "b": torch.float64, "c": torch.bool, "d": torch.bfloat16}.items()
        for number in (0, 1, 3, 7)
    }
    put(store, "t/a", state=made)
    store.check("t/a")
    put(store, "t/a")
    opened = Snapshot(store, {"t/a": store.manifest("t/a")})
    prepare(store, "t/a", "fp32")
    assert (opened.manifest("t/a").variants, set(store.manifest("t/a").variants)) == ({}, {"fp32"})
    load(opened)


def _with(header, **changes):
    return {
        "tensors": tuple(one.model_copy(update=changes) if one.name == "fc.weight" else one for one in header.tensors)
    }


BLOBS = {
    "overlap": (lambda header: _with(header, offset=0), "share bytes"),
    "askew": (lambda header: _with(header, offset=1), "outside the data, or is not aligned"),
    "beyond-the-end": (lambda header: _with(header, offset=1 << 40), "outside the data"),
    "turned": (lambda header: _with(header, shape=(12, 2)), r"'fc.weight' is \(12, 2\)"),
    "another-type": (lambda header: _with(header, dtype="I16"), r"'fc.weight' is \(2, 12\) torch.int16"),
    "quantised-nowhere": (lambda header: _with(header, dtype="Q8"), "outside the quantised part"),
    "renamed": (lambda header: _with(header, name="fc.more"), "lack 'fc.weight'"),
    "shape-huge": (lambda header: _with(header, shape=(2**40, 2**40)), "outside the data"),
    "another-kind": (lambda header: {"kind": "other"}, "is of kind other"),
    "another-variant": (lambda header: {"variant": "fp16"}, "is of kind small in fp16"),
    "another-number-of-labels": (lambda header: {"labels": 3}, "is of another kind|for 3 labels"),
    "of-another": (
        lambda header: {"identity": header.identity.model_copy(update={"id": "t/b"})},
        "'t/b', not for 't/a'",
    ),
    "labels-swapped": (
        lambda header: {"identity": header.identity.model_copy(update={"labels": ("bad", "ok")})},
        "was made for a small of 8 pixels for bad, ok",
    ),
    "folded-nowhere": (lambda header: {"folded": (("conv", "norm"),)}, "conv"),
    "fewer-checksums": (lambda header: {"checksums": ()}, "0 checksums for"),
}


@pytest.mark.parametrize("case", BLOBS)
def test_a_blob_whose_header_lies_is_refused(store, case):
    path = prepare(store, "t/a")
    raw = path.read_bytes()
    start = blob_format.data_start(raw[: blob_format.PAGE], "x")
    header = blob_format.decode(raw[:start], "x")
    change, said = BLOBS[case]
    head = blob_writing.encode(header.model_copy(update=change(header)))
    path.write_bytes(head + raw[start:])
    prepared = store.manifest("t/a").variants["fp32"].model_dump()
    changed = {"digest": xxhash.xxh3_128_hexdigest(head), "bytes": len(head) + len(raw) - start}
    edit(store, "t/a", variants={"fp32": {**prepared, **changed}})
    with pytest.raises(StoreError, match=said):
        verify(store, store.check("t/a"))
    with pytest.raises(StoreError, match=said):
        load(store, variant="fp32")
