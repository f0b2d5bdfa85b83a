"""Weights, labels, inputs and data sets that cannot be an expert's: a sentence, exit status 2, nothing in the store."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_line import STATED

from coe.board import rules
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError, RulesError
from coe.store import kinds
from coe.store.kinds import TrainingPlan

EXPERT = Expert("x", "narrow", ("ok", "bad"), 32, "t/x")
OPTIONS = ("--kind", "narrow", "--input", "32", "--labels", "ok,bad", "--no-prepare", *STATED)


@pytest.fixture(scope="module")
def state():
    kind = kinds.resolve("narrow")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return dict(kind.skeleton(EXPERT).state_dict())


@pytest.fixture
def imported(tmp_path, call):
    """Return a function that imports `x.pt` of the test's folder, or another file, into its `store`."""

    def run(*options, file="x.pt", id="t/x", store="store"):
        where = ("--store", tmp_path / store)
        return call("import", id, tmp_path / file, *OPTIONS, *options, *where, command=experts_command)

    return run


def refused(said, store, *words):
    """What every refusal is like: one sentence, status 2, and nothing that is left in the store."""
    assert said.status == 2, said.err
    assert said.err.count("error:") == 1
    assert "Traceback" not in said.err
    assert len(said.words) < 900
    for word in words:
        assert word in said.words
    assert not [path for path in store.rglob("*") if path.is_file()] if store.exists() else True


def changed(state, **new):
    return {**state, **{name.replace("__", "."): value for name, value in new.items()}}


def in_a_loop():
    outer = {}
    outer["state_dict"] = outer
    return outer


def two_in_a_loop():
    one = {}
    one["model"] = {"model": one}
    return one


def nested(depth):
    inner = {"a": torch.ones(1)}
    for _ in range(depth):
        inner = {"model": inner}
    return inner


def quantised():
    return torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8)


def filled(value, shape=(2,)):
    return torch.full(shape, value)


CONTENTS = {
    "nothing": (lambda s: {}, "holds no weights"),
    "None": (lambda s: None, "holds no weights"),
    "a number": (lambda s: 3, "holds no weights"),
    "a list": (lambda s: list(s.values()), "holds no weights"),
    "a tensor": (lambda s: torch.ones(3), "holds no weights"),
    "a text": (lambda s: "weights", "holds no weights"),
    "a dict that holds itself": (lambda s: in_a_loop(), "holds no weights"),
    "two dicts that hold each other": (lambda s: two_in_a_loop(), "holds no weights"),
    "forty dicts": (lambda s: nested(40), "holds no weights"),
    "names that are numbers": (lambda s: dict(enumerate(s.values())), "holds no weights"),
    "names of bytes": (
        lambda s: {name.encode(): value for name, value in s.items()},
        "holds no weights|cannot be read",
    ),
    "an empty name": (lambda s: {**s, "": torch.ones(1)}, "has the name ''"),
    "a name with an escape": (lambda s: {**s, "\x1b[31m": torch.ones(1)}, "has the name"),
    "a tensor too many": (lambda s: {**s, "extra": torch.ones(1)}, "no tensor 'extra'"),
    "a tensor too few": (lambda s: {n: v for n, v in s.items() if n != "conv1.weight"}, "needs a tensor 'conv1"),
    "another number of labels": (lambda s: changed(s, fc__bias=torch.ones(3)), "'fc.bias' is (3,)"),
    "another shape": (lambda s: changed(s, fc__weight=s["fc.weight"].T.contiguous()), "'fc.weight' is (384, 2)"),
    "nan": (lambda s: changed(s, fc__bias=filled(float("nan"))), "'fc.bias' holds infinite or NaN values"),
    "inf": (lambda s: changed(s, fc__bias=filled(float("inf"))), "infinite or NaN"),
    "-inf in halves": (lambda s: changed(s, fc__bias=filled(-float("inf")).half()), "infinite or NaN"),
    "doubles that overflow": (lambda s: changed(s, fc__bias=torch.full((2,), 1e300, dtype=torch.double)), "infinite"),
    "whole numbers": (lambda s: changed(s, fc__bias=torch.ones(2, dtype=torch.int64)), "'fc.bias' holds int64"),
    "truths": (lambda s: changed(s, fc__bias=torch.ones(2, dtype=torch.bool)), "'fc.bias' holds bool"),
    "complex numbers": (lambda s: changed(s, fc__bias=torch.ones(2, dtype=torch.complex64)), "holds complex64"),
    "eight bits": (lambda s: changed(s, fc__bias=torch.ones(2).to(torch.float8_e5m2)), "holds float8_e5m2"),
    "sparse": (lambda s: changed(s, fc__weight=s["fc.weight"].to_sparse()), "is stored as sparse_coo"),
    "sparse in rows": (lambda s: changed(s, fc__weight=torch.eye(4).to_sparse_csr()), "is stored as sparse_csr"),
    "without numbers": (lambda s: changed(s, fc__bias=torch.ones(2, device="meta")), "is on the device 'meta'"),
    "all without numbers": (lambda s: {n: v.to("meta") for n, v in s.items()}, "is on the device 'meta'"),
    "quantised": (lambda s: changed(s, fc__bias=quantised()), "quantised"),
    "a terabyte in four bytes": (lambda s: changed(s, fc__weight=torch.ones(1).expand(1 << 38)), "share memory"),
    "rows that overlap": (lambda s: changed(s, fc__weight=torch.ones(9).as_strided((4, 4), (1, 1))), "share memory"),
    "a row many times": (lambda s: changed(s, fc__weight=torch.ones(384).expand(2, 384)), "share memory"),
}


@pytest.mark.parametrize(("make", "says"), CONTENTS.values(), ids=CONTENTS)
@pytest.mark.filterwarnings("ignore")
def test_a_file_whose_content_is_no_weights(tmp_path, imported, state, make, says):
    torch.save(make(state), tmp_path / "x.pt")
    refused(said := imported(), tmp_path / "store")
    assert any(word in said.words for word in says.split("|")), said.words


VERSION = {"version": b"3\n"}
"""Without this entry torch opens no archive."""


def archive(path, parts, how=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", how) as file:
        for name, content in parts.items():
            file.writestr(f"archive/{name}", content)


def saved(content):
    memory = io.BytesIO()
    torch.save(content, memory)
    return memory.getvalue()


def repacked(path, how):
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.ones(4)}))) as source:
        archive(path, {entry.filename.partition("/")[2]: source.read(entry) for entry in source.infolist()}, how)


def overlapping(path):
    """An archive whose directory names the same bytes many times."""
    archive(path, {"data.pkl": b"\x80\x02}.", "data/0": b"\0" * 4096})
    raw = path.read_bytes()
    at = raw.rindex(b"PK\5\6")
    count, size, start = struct.unpack_from("<HII", raw, at + 10)
    directory = raw[start : start + size]
    many = directory * 50
    end = raw[at : at + 8] + struct.pack("<HHII", 50 * count, 50 * count, len(many), start) + b"\0\0"
    path.write_bytes(raw[:start] + many + end)


def lengthened(path):
    """An archive one of whose entries says that it is longer than the file."""
    archive(path, {"data.pkl": b"\x80\x02}.", "data/0": b"\0" * 64})
    raw = path.read_bytes()
    path.write_bytes(raw.replace(struct.pack("<II", 64, 64), struct.pack("<II", 1 << 31, 1 << 31)))


def text(word):
    """Return the step of a pickle that says a text."""
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def number(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def called(name, *given):
    """Return the steps of a pickle that call something."""
    return b"c" + name.replace(" ", "\n").encode() + b"\n(" + b"".join(given) + b"tR"


def holding(*steps):
    """Return a pickle of a dict that holds under `a` what the steps make."""
    return b"\x80\x02}" + text("a") + b"".join(steps) + b"s."


def old(path, content):
    """Write a file as torch did before 1.6."""
    before = (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {"little_endian": True})
    path.write_bytes(b"".join(pickle.dumps(one, 2) for one in before) + content + pickle.dumps([], 2) + bytes(100))


def unkept(count):
    """Return the steps that make a tensor of numbers that the file does not hold."""
    kept = text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(count) + b"N"
    shape = b"(" + number(count) + b"t(" + number(1) + b"t\x89"
    return called(
        "torch._utils _rebuild_tensor_v2", b"(" + kept + b"tQ", number(0), shape, called("collections OrderedDict")
    )


GIGA = 1 << 30
SCALAR = "numpy._core.multiarray scalar"
BOMB = b"\x80\x02" + b"]" * (20 << 20) + b"."
FILES = {
    "a bomb in the pickle": (lambda p: archive(p, {"data.pkl": BOMB}, zipfile.ZIP_DEFLATED), "is compressed"),
    "a bomb in the numbers": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02}.", "data/0": b"\0" * (32 << 20)}, zipfile.ZIP_DEFLATED),
        "is compressed",
    ),
    "a bomb of another packer": (lambda p: archive(p, {"data.pkl": BOMB}, zipfile.ZIP_BZIP2), "is compressed"),
    "and one more": (lambda p: archive(p, {"data.pkl": BOMB}, zipfile.ZIP_LZMA), "is compressed"),
    "packed again, harmless": (lambda p: repacked(p, zipfile.ZIP_DEFLATED), "is compressed"),
    "a pickle of 20 MB": (lambda p: archive(p, {"data.pkl": BOMB}), "holds more than names and shapes"),
    "a million steps": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02" + b"]0" * 500_000 + b"}."}),
        "holds more than names and shapes",
    ),
    "a million steps, the old way": (
        lambda p: p.write_bytes(b"\x80\x02" + b"]0" * 500_000 + b"}."),
        "holds more than names and shapes",
    ),
    "a key whose hash takes for ever": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02}" + b")" + b"2\x86" * 60 + text("a") + b"s."}),
        "holds more than names and shapes",
    ),
    "a key that is fetched again and again": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02})q\x00" + b"0h\x00h\x00h\x00\x87q\x00" * 40 + text("a") + b"s."}),
        "holds more than names and shapes",
    ),
    "a long key that is used a hundred thousand times": (
        lambda p: archive(
            p,
            {
                "data.pkl": b"\x80\x02}("
                + b"K\x01" * 100_000
                + b"tq\x00"
                + text("a")
                + b"s"
                + (b"h\x00" + text("a") + b"s") * 100_000
                + b"."
            },
        ),
        "holds more than names and shapes",
    ),
    "such a key, the old way": (
        lambda p: p.write_bytes(b"\x80\x02})q\x00" + b"0(h\x00h\x00h\x00h\x00h\x00tq\x00" * 30 + text("a") + b"s."),
        "holds more than names and shapes",
    ),
    "a hundred thousand lists in each other": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."}),
        "x.pt",
    ),
    "ten thousand entries": (
        lambda p: archive(p, {f"data/{number}": b"" for number in range(10_001)}),
        "10,001 entries",
    ),
    "entries that lie on each other": (overlapping, "declares"),
    "an entry longer than the file": (lengthened, "declares"),
    "a gigabyte of zeros in few words": (
        lambda p: archive(p, {"data.pkl": holding(called("builtins bytearray", number(GIGA)))}),
        "calls 'builtins bytearray'",
    ),
    "and by the name that it once had": (
        lambda p: archive(p, {"data.pkl": holding(called("__builtin__ bytearray", number(GIGA)))}),
        "calls '__builtin__ bytearray'",
    ),
    "in a pickle of capital letters": (
        lambda p: archive(p, {"DATA.PKL": holding(called("builtins bytearray", number(GIGA)))}),
        "calls 'builtins bytearray'",
    ),
    "two pickles of one name": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02}.", "DATA.PKL": b"\x80\x02}."}),
        "two entries of the same name",
    ),
    "a gigabyte of zeros the old way": (
        lambda p: old(p, holding(called("builtins bytearray", number(GIGA)))),
        "calls 'builtins bytearray'",
    ),
    "a tensor made by its size": (
        lambda p: archive(p, {"data.pkl": holding(called("torch Tensor", number(GIGA)))}),
        "calls 'torch Tensor'",
    ),
    "and of a type": (
        lambda p: archive(p, {"data.pkl": holding(called("torch FloatTensor", number(GIGA)))}),
        "calls 'torch FloatTensor'",
    ),
    "numbers that an old file does not hold": (lambda p: old(p, holding(unkept(GIGA // 4))), "declares 1,073,741,824"),
    "a large layer to be made": (
        lambda p: archive(
            p,
            {"data.pkl": holding(called("torch.nn.modules.conv Conv2d", *map(number, (20_000, 20_000, 1)))), **VERSION},
        ),
        "holds no weights",
    ),
    "a large number of numpy's": (
        lambda p: archive(
            p, {"data.pkl": holding(called(SCALAR, called("numpy dtype", text("V1000000000")))), **VERSION}
        ),
        "holds no weights",
    ),
    "no pickle": (lambda p: archive(p, {"version": b"3"}), "x.pt"),
    "an empty pickle": (lambda p: archive(p, {"data.pkl": b"", "version": b"3"}), "its pickle is damaged"),
    "a pickle that is cut": (
        lambda p: archive(p, {"data.pkl": b"\x80\x02}q", "version": b"3"}),
        "its pickle is damaged",
    ),
    "an unknown step": (lambda p: archive(p, {"data.pkl": b"\x80\x02\xff.", "version": b"3"}), "its pickle is damaged"),
    "a newer protocol": (lambda p: archive(p, {"data.pkl": pickle.dumps({}, 5), "version": b"3"}), "x.pt"),
    "an empty file": (lambda p: p.write_bytes(b""), "x.pt"),
    "zeros": (lambda p: p.write_bytes(bytes(4096)), "x.pt"),
    "text": (lambda p: p.write_text("weights\n" * 100), "x.pt"),
    "half an archive": (lambda p: p.write_bytes(saved({"a": torch.ones(400)})[:-300]), "x.pt"),
    "an archive without a middle": (
        lambda p: p.write_bytes(saved({"a": torch.ones(400)})[:200] + saved({"a": torch.ones(400)})[-300:]),
        "x.pt",
    ),
    "a plain pickle": (lambda p: p.write_bytes(pickle.dumps({"a": 1})), "its pickle is damaged"),
    "a pickle of a call": (lambda p: p.write_bytes(b"cos\nsystem\n(S'true'\ntR."), "x.pt"),
    "bytes of another kind of file": (lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)), "x.pt"),
}


SLOW = {"a million steps, the old way"}
CASES = [pytest.param(*case, id=id, marks=pytest.mark.slow if id in SLOW else ()) for id, case in FILES.items()]


@pytest.mark.parametrize(("write", "says"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_file_that_would_take_more_than_it_has(tmp_path, imported, write, says):
    write(tmp_path / "x.pt")
    refused(imported(), tmp_path / "store", says)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [archive, lambda path, parts: old(path, parts["data.pkl"])], ids=["archive", "old"])
def test_nothing_that_a_file_says_is_run(tmp_path, imported, write):
    said = f"open({str(tmp_path / 'ran')!r}, 'w').close() or torch.nn.SiLU()"
    layer = b"](" + number(-1) + number(1) + text("nn.Identity") + b"]e"
    given = {"activation": text(said), "backbone": b"](" + layer + b"e", "head": b"]", "nc": number(1)}
    network = b"}(" + b"".join(text(name) + value for name, value in given.items()) + b"u"
    content = holding(called("ultralytics.nn.tasks DetectionModel", network))
    write(tmp_path / "x.pt", {"data.pkl": content, **VERSION})
    refused(imported(), tmp_path / "store", "holds no weights")
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        *("numpy.testing._private.utils runstring", "numpy load", "torch.optim.swa_utils exec", "typing.io eval"),
        *("timm.utils system", "omegaconf._utils get_yaml_loader", "functools partial", "mmcv.runner RunDict"),
    ],
)
def test_what_stands_beside_the_weights_does_nothing(tmp_path, imported, state, name):
    said = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    torch.save({"state_dict": state, "beside": 1}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as source:
        entries = {entry.filename.partition("/")[2]: source.read(entry) for entry in source.infolist()}
    content, before = entries["data.pkl"], text("beside")
    at = content.index(before)
    call_of = called(name, text(said), b"}")
    end = content.index(b"K\x01", at)
    entries["data.pkl"] = content[:end] + call_of + content[end + 2 :]
    archive(tmp_path / "x.pt", entries)
    assert imported().status == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["builtins eval", "operator attrgetter", "subprocess Popen", "torch.hub load", "os system"]
)
def test_any_other_name_is_refused(tmp_path, imported, name):
    archive(tmp_path / "x.pt", {"data.pkl": holding(called(name, text("1"))), **VERSION})
    refused(imported(), tmp_path / "store", name.replace(" ", "."))


def test_the_tensors_of_a_network_are_those_that_it_has(tmp_path):
    network = kinds.resolve("yolov5n")
    module = network.skeleton(Expert("y", "yolov5n", ("joint", "bridge"), 64, "t/y"))
    module.names = {0: "joint", 1: "bridge"}
    torch.save({"model": module, "best": np.float64(1), "where": Path("x")}, tmp_path / "x.pt")
    found = network.read(tmp_path / "x.pt")
    assert found.labels == ("joint", "bridge")
    expected = {f"model/{name}": value for name, value in module.state_dict().items()}
    assert found.state.keys() == expected.keys()
    assert all(torch.equal(found.state[name], expected[name]) for name in expected)


def test_what_is_whole_goes_in(tmp_path, imported, state):
    last = {n: v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for n, v in state.items()}
    files = {"plain": state, "ordered": OrderedDict(state), "nested": {"state_dict": state}, "channels last": last}
    for name, content in {**files, "old": state}.items():
        torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=name != "old")
        assert imported(store=name).status == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--labels", "ok,ok"), "label 'ok' occurs twice"),
        (("--labels", "ok,none"), "'none' is reserved for"),
        (("--labels", ""), "a label is empty"),
        (("--labels", "ok,"), "a label is empty"),
        (("--labels", "ok,,bad"), "a label is empty"),
        (("--labels", "ok, ,bad"), "a label is empty"),
        (("--labels", "ok,b\x1b[31m"), "characters that cannot be shown"),
        (("--labels", "ok,b\nad"), "characters that cannot be shown"),
        (("--labels", "ok,b\u202ead"), "characters that cannot be shown"),
        (("--labels", "ok," + "b" * 5000), "has 5,000 characters"),
        (("--labels", ",".join(f"l{n}" for n in range(1001))), "more than 1,000"),
        (("--labels", "ok"), "'fc.weight' is (2, 384)"),
        (("--kind", "resnet19"), "there is no kind"),
        (("--kind", "subprocess:Popen"), "--allow-kind subprocess"),
        (("--kind", "yolov5n"), "contradict"),
        (("--kind", ""), "there is no kind"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_an_option_that_makes_no_expert(tmp_path, imported, state, options, says):
    save_file(state, tmp_path / "x.safetensors")
    refused(imported(*options, file="x.safetensors"), tmp_path / "store", says)


@pytest.mark.parametrize("size", [0, -64, 7, 4097, 1_000_000, 10**30])
def test_an_input_size_that_is_none(tmp_path, imported, state, size):
    save_file(state, tmp_path / "x.safetensors")
    said = imported("--input", size, file="x.safetensors")
    assert (said.status, "'--input'" in said.err) == (2, True)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("id", ["../x", "/x", "a/b/c", "a b", "", ".x", "a/../b", "a\x1b/b", "a/" + "b/" * 9])
def test_a_name_that_is_no_place_in_the_store(tmp_path, imported, state, id):
    save_file(state, tmp_path / "x.safetensors")
    refused(imported(file="x.safetensors", id=id), tmp_path / "store", "is not an expert id")


def picture(path, level=9):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((20, 20, 3), level, np.uint8))


def folder(root, **counts):
    for place, (label, count) in enumerate(counts.items()):
        (root / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(root / label / f"{number}.png", 10 * number + place)


def looping(root):
    folder(root, ok=3)
    (root / "bad").symlink_to(root / "bad")


DATA = {
    "nothing at all": (lambda d: None, "no such folder or file"),
    "an empty folder": (lambda d: d.mkdir(), "the labels of 'x' are not known"),
    "labels without images": (lambda d: folder(d, ok=0, bad=0), "holds no pictures of bad, ok"),
    "one label without images": (lambda d: folder(d, ok=3, bad=0), "holds no pictures of bad"),
    "one label": (lambda d: folder(d, ok=3), "only one label (ok)"),
    "one image of a label": (lambda d: folder(d, ok=3, bad=1), "give two, one to train with"),
    "a label called none": (lambda d: folder(d, ok=3, none=3), "'none' is reserved for"),
    "a label with an escape": (lambda d: folder(d, **{"ok": 3, "b\x1b[31m": 3}), "cannot be shown"),
    "a label that ends with a space": (lambda d: folder(d, **{"ok": 3, "ok ": 3}), "begins or ends with a space"),
    "a picture that is none": (lambda d: (folder(d, ok=3, bad=3), (d / "ok" / "x.png").write_bytes(b"no"))[0], "x.png"),
    "a picture that is empty": (lambda d: (folder(d, ok=3, bad=3), (d / "ok" / "x.png").touch())[0], "is empty"),
    "a folder called x.png": (lambda d: (folder(d, ok=3, bad=3), (d / "ok" / "x.png").mkdir())[0], "empty folder"),
    "a link to itself": (
        lambda d: (folder(d, ok=3, bad=3), (d / "ok" / "x.png").symlink_to(d / "ok" / "x.png"))[0],
        "cannot be read",
    ),
    "a label that links to itself": (looping, "link is broken"),
    "held out of one label": (
        lambda d: (folder(d / "train", ok=3, bad=3), folder(d / "val", ok=2)),
        "val' holds no pictures of bad",
    ),
    "a file of bytes": (lambda d: d.write_bytes(b"\xff\xfe\0"), "not UTF-8"),
    "an empty file": (lambda d: d.touch(), "the file is empty; it needs train and names"),
    "a list": (lambda d: d.write_text("- a\n- b\n"), "it needs train and names"),
    "a text": (lambda d: d.write_text("data"), "it needs train and names"),
    "no names": (lambda d: d.write_text("train: t\n"), "needs at least the keys"),
    "key points": (lambda d: d.write_text("train: t\nnames: [a]\nkpt_shape: [4, 2]\n"), "'kpt_shape'"),
    "names that are a text": (lambda d: d.write_text("train: t\nnames: ok\n"), "'names' must be a list"),
    "names of lists": (lambda d: d.write_text("train: t\nnames: [[a], [b]]\n"), "'names' must be a list"),
    "names of nothing": (lambda d: d.write_text("train: t\nnames: [~, ok]\n"), "'names' must be a list"),
    "no name": (lambda d: d.write_text("train: t\nnames: []\n"), "the labels of 'x' are not known"),
    "names with a gap": (lambda d: d.write_text("train: t\nnames: {0: a, 2: b}\n"), "the numbers from 0 to 1"),
    "names by words": (lambda d: d.write_text("train: t\nnames: {a: 0, b: 1}\n"), "the numbers from 0 to 1"),
    "names given twice": (lambda d: d.write_text("train: t\nnames: [a, a]\n"), "label 'a' occurs twice"),
    "bytes": (lambda d: d.write_text("train: t\nnames: !!binary aGFsbG8=\n"), "is a tag"),
    "an object": (lambda d: d.write_text("train: !!python/object/apply:os.system [true]\nnames: [a]\n"), "is a tag"),
    "an alias": (lambda d: d.write_text("train: &t t\nval: *t\nnames: [a, b]\n"), "is an alias"),
    "itself": (lambda d: d.write_text("train: t\nnames: &n [*n]\n"), "is an alias"),
    "a merge": (lambda d: d.write_text("base: &b {train: t}\n<<: *b\nnames: [a, b]\n"), "is an alias"),
    "many levels": (lambda d: d.write_text("train: " + "[" * 900 + "]" * 900), "nested deeper"),
    "not YAML": (lambda d: d.write_text("train: [\n"), "not valid YAML"),
    "a key twice": (lambda d: d.write_text("train: a\ntrain: b\nnames: [a]\n"), "occurs twice"),
    "a picture": (lambda d: d.write_bytes(b"\x89PNG") and d.rename(d.parent / "data.PNG"), "data.PNG"),
}


@pytest.mark.parametrize(("make", "says"), DATA.values(), ids=DATA)
def test_data_from_which_nothing_can_be_trained(tmp_path, call, make, says):
    data = make(tmp_path / "data.yaml")
    data = data if isinstance(data, Path) else tmp_path / "data.yaml"
    options = ("--kind", "narrow", "--input", "32", "--epochs", "1", "--store", tmp_path / "store")
    said = call("train", "t/x", "--data", data, *options, command=experts_command)
    refused(said, tmp_path / "store", says)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epochs", value) for value in (0, 1.5, 10**9)),
        *(("batch", value) for value in (0, True)),
        *(("learning_rate", value) for value in (float("nan"), -1, 1e308)),
        *(("seed", value) for value in (1 << 70, "1")),
        *(("threads", value) for value in (-1, 1_000_000)),
        *(("held_out", value) for value in (2, float("nan"))),
    ],
)
def test_a_plan_by_which_nothing_can_be_trained(tmp_path, name, value):
    plan = {"data": tmp_path, "work": tmp_path, "epochs": 1, "batch": 1, "learning_rate": 0.1}
    with pytest.raises(ConfigError, match=f"{name}="):
        TrainingPlan(**{**plan, name: value})


RULES = """board: b
experts:
  a: {kind: narrow, labels: [ok, bad], input: 32, reject: [bad]}
components:
  A: {count: 1, inspect: a}
"""
SIZES = ["0", "-64", "7", "4097", "1000000", "0o60", "0x40", "1:04", "~", ".inf", ".nan", "1e2", "64.5", "[64]", "true"]
COUNTS = [".inf", ".nan", "inf", "nan", "-1", "1e308", "1e7", "1:30", "[1]", "!!int 64", "{}"]
LABELS = ["ok", "none", "''", "' '", '"b\\x1b"', '"b\\nad"', "~", "[bad]"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *(("input: 32", f"input: {size}") for size in SIZES),
        *(("count: 1", f"count: {count}") for count in COUNTS),
        *(("[ok, bad]", f"[ok, {label}]") for label in LABELS),
        *(("[ok, bad]", labels) for labels in ("ok", "[]", "!!binary b2s=", "{ok: b}", "!!set {ok, b}", "[ok, ? bad]")),
        ("components:", "<<: {A: b}\ncomponents:"),
        ("components:", "? [a, b]\n: c\ncomponents:"),
        ("board: b", "board: !b b"),
        ("board: b", "board: [b]"),
        ("board: b", "%YAML 9.9\n---\nboard: b"),
        ("board: b", "board: b\n---\nboard: c"),
    ],
    ids=lambda text: f"{text!r:.30}",
)
def test_yaml_that_says_something_else_than_it_seems(board_file, old, new):
    path = board_file(RULES.replace(old, new))
    with pytest.raises(RulesError) as wrong:
        rules.load(path)
    assert str(wrong.value).startswith("board.yaml:")
    assert "\n" not in str(wrong.value)
    assert str(wrong.value).isprintable()
