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

from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError
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


def with_bias(value):
    return lambda state: state | {"fc.bias": value}


def with_weight(value):
    return lambda state: state | {"fc.weight": value}


def in_a_loop():
    outer = {}
    outer["state_dict"] = {"model": outer}
    return outer


def nested(depth):
    inner = {"a": torch.ones(1)}
    for _ in range(depth):
        inner = {"model": inner}
    return inner


CONTENTS = {
    "None": (lambda s: None, "no weights"),
    "a list": (lambda s: list(s.values()), "no weights"),
    "dicts that hold each other": (lambda s: in_a_loop(), "no weights"),
    "forty dicts": (lambda s: nested(40), "no weights"),
    "names that are numbers": (lambda s: dict(enumerate(s.values())), "no weights"),
    "an empty name": (lambda s: s | {"": torch.ones(1)}, "the name ''"),
    "a name with an escape": (lambda s: s | {"\x1b[31m": torch.ones(1)}, "the name"),
    "a tensor too many": (lambda s: s | {"extra": torch.ones(1)}, "'extra'"),
    "a tensor too few": (lambda s: {n: v for n, v in s.items() if n != "conv1.weight"}, "'conv1"),
    "another number of labels": (with_bias(torch.ones(3)), "'fc.bias'"),
    "another shape": (lambda s: s | {"fc.weight": s["fc.weight"].T.contiguous()}, "(384, 2)"),
    "nan": (with_bias(torch.full((2,), float("nan"))), "'fc.bias' holds infinite"),
    "-inf in halves": (with_bias(torch.full((2,), -float("inf")).half()), "infinite"),
    "doubles that overflow": (with_bias(torch.full((2,), 1e300, dtype=torch.double)), "infinite"),
    "whole numbers": (with_bias(torch.ones(2, dtype=torch.int64)), "'fc.bias' holds int64"),
    "complex numbers": (with_bias(torch.ones(2, dtype=torch.complex64)), "complex64"),
    "sparse": (lambda s: s | {"fc.weight": s["fc.weight"].to_sparse()}, "sparse_coo"),
    "without numbers": (with_bias(torch.ones(2, device="meta")), "'meta'"),
    "quantised": (lambda s: s | {"fc.bias": torch.quantize_per_tensor(torch.ones(2), 1, 0, torch.qint8)}, "quantised"),
    "a terabyte in four bytes": (with_weight(torch.ones(1).expand(1 << 38)), "share memory"),
    "rows that overlap": (with_weight(torch.ones(9).as_strided((4, 4), (1, 1))), "share memory"),
}


@pytest.mark.parametrize(("make", "says"), CONTENTS.values(), ids=CONTENTS)
@pytest.mark.filterwarnings("ignore")
def test_a_file_whose_content_is_no_weights(tmp_path, imported, state, make, says):
    torch.save(make(state), tmp_path / "x.pt")
    refused(imported(), tmp_path / "store", says)


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
ZEROS = holding(called("builtins bytearray", number(GIGA)))
LARGE_LAYER = holding(called("torch.nn.modules.conv Conv2d", *map(number, (20_000, 20_000, 1))))
LARGE_NUMBER = holding(called("numpy._core.multiarray scalar", called("numpy dtype", text("V1000000000"))))
BOMB, TRAP = b"\x80\x02" + b"]" * (20 << 20) + b".", "shapes"
DOUBLED = b"\x80\x02}" + b")" + b"2\x86" * 60 + text("a") + b"s."
FETCHED = b"\x80\x02})q\x00" + b"0h\x00h\x00h\x00\x87q\x00" * 40 + text("a") + b"s."
MARKED = b"\x80\x02})q\x00" + b"0(h\x00h\x00h\x00h\x00h\x00tq\x00" * 30 + text("a") + b"s."
NESTED = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."


def pickled(content, how=zipfile.ZIP_STORED, *, name="data.pkl", **more):
    return lambda path: archive(path, {name: content, **more}, how)


FILES = {
    "a bomb in the pickle": (pickled(BOMB, zipfile.ZIP_DEFLATED), "compressed"),
    "packed again, harmless": (lambda path: repacked(path, zipfile.ZIP_DEFLATED), "compressed"),
    "a pickle of 20 MB": (pickled(BOMB), TRAP),
    "a million steps": (pickled(b"\x80\x02" + b"]0" * 500_000 + b"}."), TRAP),
    "a key whose hash takes for ever": (pickled(DOUBLED), TRAP),
    "a key that is fetched again and again": (pickled(FETCHED), TRAP),
    "such a key, the old way": (lambda path: path.write_bytes(MARKED), TRAP),
    "a hundred thousand lists in each other": (pickled(NESTED), "x.pt"),
    "ten thousand entries": (
        lambda path: archive(path, {f"data/{number}": b"" for number in range(10_001)}),
        "10,001 entries",
    ),
    "entries that lie on each other": (overlapping, "declares"),
    "an entry longer than the file": (lengthened, "declares"),
    "a gigabyte of zeros in few words": (pickled(ZEROS, name="DATA.PKL"), "'builtins bytearray'"),
    "the old way": (lambda path: old(path, ZEROS), "'builtins bytearray'"),
    "by the name that it once had": (pickled(ZEROS.replace(b"builtins", b"__builtin__")), "'__builtin__ bytearray'"),
    "two pickles of one name": (
        lambda path: archive(path, {"data.pkl": b"\x80\x02}.", "DATA.PKL": b"\x80\x02}."}),
        "two entries",
    ),
    "a tensor made by its size": (pickled(holding(called("torch Tensor", number(GIGA)))), "'torch Tensor'"),
    "and of a type": (pickled(holding(called("torch FloatTensor", number(GIGA)))), "'torch FloatTensor'"),
    "numbers that an old file lacks": (lambda path: old(path, holding(unkept(GIGA // 4))), "declares 1,073,741,824"),
    "a large layer to be made": (pickled(LARGE_LAYER, **VERSION), "x.pt"),
    "a large number of numpy's": (pickled(LARGE_NUMBER, **VERSION), "x.pt"),
    "no pickle": (lambda path: archive(path, VERSION), "x.pt"),
    "an empty pickle": (pickled(b"", **VERSION), "damaged"),
    "an unknown step": (pickled(b"\x80\x02\xff.", **VERSION), "damaged"),
    "a newer protocol": (pickled(pickle.dumps({}, 5), **VERSION), "x.pt"),
    "an empty file": (lambda path: path.write_bytes(b""), "x.pt"),
    "half an archive": (lambda path: path.write_bytes(saved({"a": torch.ones(400)})[:-300]), "x.pt"),
    "a plain pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "damaged"),
    "a pickle of a call": (lambda path: path.write_bytes(b"cos\nsystem\n(S'true'\ntR."), "x.pt"),
}


@pytest.mark.parametrize(("write", "says"), FILES.values(), ids=FILES)
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
    refused(imported(), tmp_path / "store", "x.pt")
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


def test_what_is_whole_goes_in(tmp_path, imported, state):
    last = {n: v.to(memory_format=torch.channels_last) if v.ndim == 4 else v for n, v in state.items()}
    files = {"plain": state, "ordered": OrderedDict(state), "nested": {"state_dict": state}, "channels last": last}
    for name, content in {**files, "old": state}.items():
        torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=name != "old")
        assert imported(store=name).status == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--labels", "ok,ok"), "twice"),
        (("--labels", "ok,none"), "'none'"),
        *((("--labels", labels), "empty") for labels in ("", "ok,", "ok, ,bad")),
        *((("--labels", f"ok,{label}"), "cannot be shown") for label in ("b\x1b[31m", "b\u202ead")),
        (("--labels", "ok," + "b" * 5000), "5,000"),
        (("--labels", ",".join(f"l{n}" for n in range(1001))), "1,000"),
        (("--labels", "ok"), "(2, 384)"),
        (("--kind", "resnet19"), "no kind"),
        (("--kind", "subprocess:Popen"), "--allow-kind subprocess"),
        (("--kind", "yolov5n"), "contradict"),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_an_option_that_makes_no_expert(tmp_path, imported, state, options, says):
    save_file(state, tmp_path / "x.safetensors")
    refused(imported(*options, file="x.safetensors"), tmp_path / "store", says)


def test_a_name_that_is_no_place_in_the_store(tmp_path, imported, state):
    save_file(state, tmp_path / "x.safetensors")
    refused(imported(file="x.safetensors", id="../x"), tmp_path / "store", "id")


def folder(root, **counts):
    for place, (label, count) in enumerate(counts.items()):
        (root / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            cv2.imwrite(str(root / label / f"{number}.png"), np.full((20, 20, 3), 10 * number + place, np.uint8))


def beside_pictures(spoil):
    """Six pictures of two labels, and something in the place of one more."""

    def make(root):
        folder(root, ok=3, bad=3)
        spoil(root / "ok" / "x.png")

    return make


def looping(root):
    folder(root, ok=3)
    (root / "bad").symlink_to(root / "bad")


DATA = {
    "nothing at all": (lambda d: None, "no such folder"),
    "an empty folder": (lambda d: d.mkdir(), "labels of 'x'"),
    "labels without images": (lambda d: folder(d, ok=0, bad=0), "bad, ok"),
    "one label": (lambda d: folder(d, ok=3), "(ok)"),
    "one image of a label": (lambda d: folder(d, ok=3, bad=1), "give two"),
    "a label called none": (lambda d: folder(d, ok=3, none=3), "'none'"),
    "a label with an escape": (lambda d: folder(d, **{"ok": 3, "b\x1b[31m": 3}), "cannot be shown"),
    "a label that ends with a space": (lambda d: folder(d, **{"ok": 3, "ok ": 3}), "space"),
    "a picture that is none": (beside_pictures(lambda path: path.write_bytes(b"no")), "x.png"),
    "a picture that is empty": (beside_pictures(Path.touch), "is empty"),
    "a folder called x.png": (beside_pictures(Path.mkdir), "empty folder"),
    "a link to itself": (beside_pictures(lambda path: path.symlink_to(path)), "cannot be read"),
    "a label that links to itself": (looping, "link is broken"),
    "held out of one label": (lambda d: (folder(d / "train", ok=3, bad=3), folder(d / "val", ok=2)), "val' holds no"),
    "a picture": (lambda d: d.write_bytes(b"\x89PNG") and d.rename(d.parent / "data.PNG"), "data.PNG"),
}
TEXTS = {
    b"\xff\xfe\0": "UTF-8",
    b"": "train and names",
    b"- a\n- b\n": "train and names",
    b"data": "train and names",
    b"train: t\n": "'names'",
    b"train: t\nnames: [a]\nkpt_shape: [4, 2]\n": "'kpt_shape'",
    b"train: t\nnames: ok\n": "'names'",
    b"train: t\nnames: [[a], [b]]\n": "'names'",
    b"train: t\nnames: [~, ok]\n": "'names'",
    b"train: t\nnames: []\n": "labels of 'x'",
    b"train: t\nnames: {0: a, 2: b}\n": "from 0 to 1",
    b"train: t\nnames: {a: 0, b: 1}\n": "from 0 to 1",
    b"train: t\nnames: [a, a]\n": "twice",
    b"train: &t t\nval: *t\nnames: [a, b]\n": "alias",
}
DATA |= {str(content): (lambda d, content=content: d.write_bytes(content), word) for content, word in TEXTS.items()}


@pytest.mark.parametrize(("make", "says"), DATA.values(), ids=DATA)
def test_data_from_which_nothing_can_be_trained(tmp_path, call, make, says):
    data = make(tmp_path / "data.yaml")
    data = data if isinstance(data, Path) else tmp_path / "data.yaml"
    options = ("--kind", "narrow", "--input", "32", "--epochs", "1", "--store", tmp_path / "store")
    said = call("train", "t/x", "--data", data, *options, command=experts_command)
    refused(said, tmp_path / "store", says)


def test_a_plan_by_which_nothing_can_be_trained(tmp_path):
    plan = {"data": tmp_path, "work": tmp_path, "epochs": 1, "batch": 1, "learning_rate": 0.1}
    wrong = {"epochs": (0, 1.5, 10**9), "batch": (0, True), "learning_rate": (float("nan"), -1, 1e308)}
    wrong |= {"seed": (1 << 70, "1"), "threads": (-1, 1_000_000), "held_out": (2, float("nan"))}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ConfigError, match=f"{name}="):
                TrainingPlan(**{**plan, name: value})
