"""ONNX files of other programs in int8: they say what their file says, or are refused with the reason."""

import dataclasses

import numpy as np
import onnx
import pytest
from onnx_files import model, written
from PIL import Image
from tiny_line import STATED

from coe import Inspector
from coe.cli import experts_command
from coe.core import Expert
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing
from coe.pictures.decoding import decode
from coe.runtime.cpu import CpuDevice
from coe.scheduler.costs import Cost
from coe.store.kinds import resolve
from coe.store.store import Store
from coe.testing import Experiment
from coe.variants.prepare import Preparer
from experts.onnx import onnx as kind

SIZE = 32
LABELS = ("dark", "bright")
EXPERT = Expert("joint", "onnx", LABELS, SIZE, "line/joint")
MEAN, DEVIATION = NORMALIZATIONS["imagenet"]
BOARD = f"""
board: line
experts: {{joint: {{kind: onnx, labels: [dark, bright], input: {SIZE}}}}}
components: {{C: {{inspect: joint, then: {{dark: NG, bright: OK}}}}}}
"""


@dataclasses.dataclass
class File:
    """A classifier of two convolutions and a head: the brighter the picture, the surer the second label."""

    opset: int = 17
    batch: int | str = "n"
    entry: str = "float"
    names: bool = True
    side: int | str = SIZE
    of: type = np.float32
    more: str = ""
    shape: tuple[int | str, ...] = ("n", 2)

    def save(self, path):
        chance = np.random.default_rng(3)
        shapes = {"first": (8, 3, 3, 3), "second": (16, 8, 3, 3), "head": (16, 2)}
        numbers = {name: np.abs(chance.normal(0, 0.2, shape).astype(np.float32)) for name, shape in shapes.items()}
        numbers = {name: value.astype(self.of) for name, value in numbers.items()}
        numbers["head"] *= np.array([-4, 4], self.of)
        numbers["bias"] = np.zeros(2, self.of)
        start, entry = ("floats = Cast<to=1>(images)", "floats") if self.entry == "uint8" else ("", "images")
        last, end = ("flat", "scores = Unsqueeze(flat, axes)") if len(self.shape) > 2 else ("scores", "")
        nodes = f"""{start} a = Conv({entry}, first) b = Relu(a) c = Conv<strides=[2,2]>(b, second) d = Relu(c)
            e = GlobalAveragePool(d) f = Flatten(e) {last} = Gemm(f, head, bias) {end} {self.more}"""
        taken = f"{self.entry}[{self.batch},3,{self.side},{self.side}] images"
        given = f"{'float' if self.of is np.float32 else 'float16'}[{','.join(map(str, self.shape))}] scores"
        numbers |= {"axes": [2, 3]} if end else {}
        made = model(taken, nodes, given, opset=self.opset, **numbers)
        for number, node in enumerate(made.graph.node):
            node.name = f"n{number}" if self.names else ""
        onnx.save(made, str(path))
        return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    for number in range(12):
        low = 10 * number + 110 * (number > 5)
        pixels = chance.integers(low, low + 30, (8, 8, 3), np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return sorted(folder.iterdir())


def stored(tmp_path, file, *, takes_bytes=False, labels=LABELS):
    store = Store(tmp_path / "store")
    mean, deviation = NORMALIZATIONS["0..255" if takes_bytes else "imagenet"]
    outputs = Outputs(name="scores", layout="scores", activation="softmax")
    known = {"labels": labels, "input_size": SIZE, "preprocessing": Preprocessing(mean=mean, std=deviation)}
    store.put(EXPERT.weights, kind="onnx", file=file, outputs=outputs, **known)
    return store


def prepared(store, pictures):
    return Preparer(store, ["fp32", "q8", "int8"], search_s=0).prepare(EXPERT.weights, pictures, "noise")


def answers(store, pictures, variant):
    expert = dataclasses.replace(store.manifest(EXPERT.weights).fit(EXPERT), variant=variant)
    device = CpuDevice(store, {"onnx": resolve("onnx")}, 1)
    device.load("pool", expert)
    return np.asarray(device.outputs("e", "pool", expert, [kind.preprocess(decode(path), expert) for path in pictures]))


FORMS = [
    *({}, {"batch": 1}, {"side": "side"}, {"entry": "uint8"}, {"names": False}, {"shape": ("n", 2, 1, 1)}),
    *({"opset": number} for number in (9, 13, 18, 22)),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_file_in_int8_says_what_it_says_in_floats(form, tmp_path, pictures):
    file = File(**form)
    store = stored(tmp_path, file.save(tmp_path / "m.onnx"), takes_bytes=file.entry == "uint8")
    outcome = prepared(store, pictures)
    assert (outcome.made, outcome.failed) == (("int8",), {})
    made_of = outcome.manifest.variants["int8"].calibration
    assert (made_of.layers, len(made_of.in_float) <= 1) == (3, True)
    store.check(EXPERT.weights)
    exact, small = answers(store, pictures, "fp32"), answers(store, pictures, "int8")
    assert np.ptp(exact[:, 1]) > 0.5
    assert np.abs(exact - small).max() < 0.05 * np.abs(exact).max()
    assert prepared(store, pictures).made == ()


QUANTISED = """s = Constant<value_float=0.1>() z = Constant<value=uint8 {0}>() q = QuantizeLinear(b, s, z)"""
LOOP = """count = Constant<value_int=1>() again = Loop<body=body (int64 number, bool on, int64 seen) =>
    (bool still, int64 same) { still = Identity(on) same = Identity(seen) }>(count, "", count)"""


@pytest.mark.parametrize(
    ("file", "word"),
    [(File(more=QUANTISED), "quantised"), (File(of=np.float16, entry="float16"), "float32"), (File(more=LOOP), "Loop")],
)
def test_a_file_of_which_there_is_no_int8_says_why_and_runs_as_it_is(file, word, tmp_path, pictures):
    outcome = prepared(store := stored(tmp_path, file.save(tmp_path / "m.onnx")), pictures)
    assert outcome.made == ()
    assert word in outcome.failed["int8"]
    assert word in prepared(store, pictures).skipped  # it is known from then on
    (tmp_path / "line.yaml").write_text(BOARD, encoding="utf-8")
    said = []
    with Inspector(tmp_path / "line.yaml", store=store.root, precision="mixed", memory="64MB", say=said.append):
        assert not any("fp32 alone" in sentence for sentence in said)


def test_a_file_without_layers_has_nothing_to_gain(tmp_path, pictures):
    nodes, path = "scores = ReduceMean<axes=[2,3], keepdims=0>(images)", tmp_path / "m.onnx"
    written(path, f"float[n,3,{SIZE},{SIZE}] images", nodes, "float[n,3] scores")
    assert "layers" in prepared(stored(tmp_path, path, labels=("r", "g", "b")), pictures).failed["int8"]


def test_import_makes_it_where_pictures_are_at_hand_and_a_line_uses_it(tmp_path, pictures, call, monkeypatch):
    file = File().save(tmp_path / "m.onnx")
    for number, path in enumerate(pictures):
        (folder := tmp_path / "seen" / LABELS[number > 5]).mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
    said = call(
        *("import", "line/joint", file, "--kind", "onnx", "--input", SIZE, "--labels", ",".join(LABELS)),
        *("--images", tmp_path / "seen", "--store", tmp_path / "s", *STATED, "--activation", "softmax"),
        command=experts_command,
    )
    store = Store(tmp_path / "s")
    assert store.manifest("line/joint").variants.keys() == {"int8"}, said.words
    more = ("prepare", "line/joint", "--images", tmp_path / "seen", "--store", store.root)
    assert "only have int8" not in call(*more, command=experts_command).words
    assert "only have int8" in call(*more, "--variants", "q8,int8", command=experts_command).words
    (tmp_path / "line.yaml").write_text(BOARD, encoding="utf-8")
    full, quick = Cost(4e-3, 0.0, 1e-3, 20_000_000, 10), Cost(1e-3, 0.0, 1e-3, 5_000_000, 10)
    monkeypatch.setattr(CpuDevice, "measure", lambda _, expert: quick if expert.variant == "int8" else full)
    labels = {}
    for precision in ("fp32", "mixed"):
        how = {"precision": precision, "experiment": Experiment(label_floor=0), "memory": "64MB"}
        with Inspector(tmp_path / "line.yaml", store=store.root, **how) as line:
            futures = [line.submit(np.asarray(decode(path)), "C") for path in pictures]
            results = [future.result(60) for future in futures]
        labels[precision] = [result.findings[-1].label for result in results]
        assert {result.findings[0].variant for result in results} == {"int8" if precision == "mixed" else "fp32"}
    assert labels["mixed"] == labels["fp32"]
