"""ONNX files of other programs in int8: they say what their file says, or are refused with the reason."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
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
    entry: int = TensorProto.FLOAT
    names: bool = True
    side: int | str = SIZE
    weights: type[np.floating[Any]] = np.float32
    more: Sequence[onnx.NodeProto] = ()
    shape: tuple[int | str, ...] = ("n", 2)

    def save(self, path):
        chance = np.random.default_rng(3)
        shapes = {"first": (8, 3, 3, 3), "second": (16, 8, 3, 3), "head": (16, 2)}
        constants = {name: chance.normal(0, 0.2, shape).astype(self.weights) for name, shape in shapes.items()}
        constants["first"] = np.abs(constants["first"])
        constants["second"] = np.abs(constants["second"])
        constants["head"] = np.abs(constants["head"]) * np.array([-4, 4], self.weights)
        constants["bias"] = np.zeros(2, self.weights)
        constants |= {"axes": np.array([2, 3])} if len(self.shape) > 2 else {}
        start = [helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT)]
        nodes = [
            *(start if self.entry == TensorProto.UINT8 else []),
            helper.make_node("Conv", ["floats" if self.entry == TensorProto.UINT8 else "images", "first"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "second"], ["c"], strides=[2, 2]),
            helper.make_node("Relu", ["c"], ["d"]),
            helper.make_node("GlobalAveragePool", ["d"], ["e"]),
            helper.make_node("Flatten", ["e"], ["f"]),
            helper.make_node("Gemm", ["f", "head", "bias"], ["scores" if len(self.shape) == 2 else "flat"]),
            *([helper.make_node("Unsqueeze", ["flat", "axes"], ["scores"])] if len(self.shape) > 2 else []),
            *self.more,
        ]
        for number, node in enumerate(nodes):
            node.name = f"n{number}" if self.names else ""
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("images", self.entry, [self.batch, 3, self.side, self.side])],
            [
                helper.make_tensor_value_info(
                    "scores", helper.np_dtype_to_tensor_dtype(np.dtype(self.weights)), self.shape
                )
            ],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
        return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    for number in range(12):
        low = 10 * number + 110 * (number > 5)
        pixels = chance.integers(low, low + 30, (8, 8, 3), np.uint8).repeat(4, 0).repeat(4, 1)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return sorted(folder.iterdir())


def stored(tmp_path, file, *, takes_bytes=False):
    store = Store(tmp_path / "store")
    mean, deviation = NORMALIZATIONS["0..255" if takes_bytes else "imagenet"]
    store.put(
        EXPERT.weights,
        kind="onnx",
        labels=LABELS,
        input_size=SIZE,
        file=file,
        preprocessing=Preprocessing(mean=mean, std=deviation),
        outputs=Outputs(name="scores", layout="scores", activation="softmax"),
    )
    return store


def prepared(store, pictures):
    return Preparer(store, ["fp32", "q8", "int8"], search_s=0).prepare(EXPERT.weights, pictures, "noise")


def answers(store, pictures, variant):
    expert = dataclasses.replace(store.manifest(EXPERT.weights).fit(EXPERT), variant=variant)
    device = CpuDevice(store, {"onnx": resolve("onnx")}, 1)
    device.load("pool", expert)
    return np.asarray(device.outputs("e", "pool", expert, [kind.preprocess(decode(path), expert) for path in pictures]))


FORMS = {
    "open batch": File(),
    "batch of one": File(batch=1),
    "open sizes": File(side="side"),
    "bytes": File(entry=TensorProto.UINT8),
    "nodes without names": File(names=False),
    "axes of size 1": File(shape=("n", 2, 1, 1)),
    "opset 9": File(opset=9),
    "opset 13": File(opset=13),
    "opset 18": File(opset=18),
    "opset 22": File(opset=22),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_in_int8_says_what_it_says_in_floats(form, tmp_path, pictures):
    file = FORMS[form]
    store = stored(tmp_path, file.save(tmp_path / "m.onnx"), takes_bytes=file.entry == TensorProto.UINT8)
    outcome = prepared(store, pictures)
    assert (outcome.made, outcome.failed) == (("int8",), {})
    made_of = outcome.manifest.variants["int8"].calibration
    assert (made_of.layers, made_of.float_layers <= 1) == (3, True)
    store.check(EXPERT.weights)
    exact, small = answers(store, pictures, "fp32"), answers(store, pictures, "int8")
    assert np.ptp(exact[:, 1]) > 0.5
    assert np.abs(exact - small).max() < 0.05 * np.abs(exact).max()
    assert prepared(store, pictures).made == ()


def quantised():
    scale = helper.make_node("Constant", [], ["s"], value_float=0.1)
    zero = helper.make_node("Constant", [], ["z"], value=numpy_helper.from_array(np.uint8(0)))
    nodes = [helper.make_node("QuantizeLinear", ["b", "s", "z"], ["q"])]
    return File(more=[scale, zero, *nodes])


def looping():
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["still"]), helper.make_node("Identity", ["seen"], ["same"])],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("seen", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("same", TensorProto.INT64, []),
        ],
    )
    count = helper.make_node("Constant", [], ["count"], value_int=1)
    return File(more=[count, helper.make_node("Loop", ["count", "", "count"], ["again"], body=body)])


def mean_alone(path):
    nodes = [helper.make_node("ReduceMean", ["images"], ["scores"], axes=[2, 3], keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize(
    ("file", "word"),
    [
        (quantised(), "quantised already"),
        (File(weights=np.float16, entry=TensorProto.FLOAT16), "float32"),
        (looping(), "Loop"),
    ],
    ids=["quantised", "16 bits", "loop"],
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
    store = stored(tmp_path, mean_alone(tmp_path / "m.onnx"))
    store.put(
        EXPERT.weights,
        kind="onnx",
        labels=("r", "g", "b"),
        input_size=SIZE,
        file=tmp_path / "m.onnx",
        outputs=Outputs(name="scores", layout="scores", activation="softmax"),
    )
    assert "layers" in prepared(store, pictures).failed["int8"]


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
        with Inspector(
            tmp_path / "line.yaml",
            store=store.root,
            precision=precision,
            experiment=Experiment(label_floor=0),
            memory="64MB",
        ) as line:
            futures = [line.submit(np.asarray(decode(path)), "C") for path in pictures]
            results = [future.result(60) for future in futures]
        labels[precision] = [result.findings[-1].label for result in results]
        assert {result.findings[0].variant for result in results} == {"int8" if precision == "mixed" else "fp32"}
    assert labels["mixed"] == labels["fp32"]
