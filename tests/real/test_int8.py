"""Experts in int8 through onnxruntime: they say what torch says, refuse what would make them blind, and come and go."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import psutil
import pytest
import torch
from PIL import Image

from coe import Inspector
from coe.board.rules import load
from coe.core import Expert
from coe.errors import StoreError
from coe.inspector.precision import choose
from coe.inspector.profile import KindProfile
from coe.prepare import int8
from coe.prepare.fold import network
from coe.prepare.prepare import Preparer
from coe.profiler.backends import CannotMeasure
from coe.profiler.measure import MeasuredExpert, Target, measure
from coe.runtime.cpu import CpuDevice
from coe.runtime.onnx_network import OnnxNetwork, flat, nested, nesting
from coe.scheduler.costs import Cost
from coe.store import kinds, skeletons
from coe.store.store import Store
from coe.system import give_memory_back

CLASSIFIER = Expert("joint", "narrow", ("ok", "bad", "gone"), 64, "line/joint", variant="int8")
DETECTOR = Expert("bridge", "narrow_boxes", ("bridge", "gap"), 96, "line/bridge", variant="int8")
RESNET = Expert("body", "resnet18", ("ok", "bad"), 32, "line/body", variant="int8")
YOLO = Expert("mark", "yolov5n", ("mark", "scratch"), 64, "line/mark", variant="int8")
SMALL = pytest.mark.parametrize("expert", [CLASSIFIER, DETECTOR], ids=["narrow", "narrow_boxes"])
BOARD = """
board: line
experts: {joint: {kind: narrow, labels: [ok, bad, gone], input: 64}}
components: {C: {inspect: joint, then: {ok: OK, bad: NG, gone: NG}}}
"""


def images(expert: Expert, count: int = 5) -> list[np.ndarray]:
    """Pictures (3, S, S) of noise that gets coarser, as kinds prepare them."""
    chance, side = np.random.default_rng(1), expert.input_size
    return [
        chance.integers(0, 256, (3, side >> n % 3, side >> n % 3), np.uint8).repeat(1 << n % 3, 1).repeat(1 << n % 3, 2)
        for n in range(count)
    ]


@functools.cache
def trained(expert: Expert) -> dict[str, torch.Tensor]:
    """Random weights; do not change them."""
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, kinds.ModuleKind)
    return skeletons.random_weights(kind, expert, 3)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(images(CLASSIFIER, 12)):
        Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def prepared(pictures: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with both small experts in int8; do not change it."""
    store = Store(tmp_path_factory.mktemp("int8") / "store")
    for expert in (CLASSIFIER, DETECTOR):
        store.put(
            expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=trained(expert)
        )
        assert Preparer(store, ["fp32", "int8"]).prepare(expert.weights, pictures).failed == {}
    return store


@pytest.mark.parametrize(
    "expert",
    [CLASSIFIER, DETECTOR, pytest.param(RESNET, marks=pytest.mark.slow), pytest.param(YOLO, marks=pytest.mark.slow)],
    ids=["narrow", "narrow_boxes", "resnet18", "yolov5n"],
)
def test_a_quantised_network_says_nearly_the_same_for_batches_of_any_size(expert: Expert) -> None:
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, kinds.ModuleKind)
    module = network(kind, expert, trained(expert))
    exported = int8.export(kind, expert, module, images(expert))
    small = int8.quantised(exported, images(expert), float_ends=False)
    convolutions = sum(node.op_type == "Conv" for node in exported.graph.node)
    int8_weights = [tensor for tensor in small.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert len(int8_weights) >= convolutions - 1  # of a distribution's mean, the weights are whole numbers
    assert small.ByteSize() < 0.5 * exported.ByteSize()
    session = OnnxNetwork(small.SerializeToString(), 1, "m")
    for count in (1, 5, 2):
        batch = np.stack(images(expert, count))
        with torch.inference_mode():
            exact = flat(kind.forward(module, torch.from_numpy(batch)))
        seen = flat(session.run(batch))
        for one, other in zip(exact, seen, strict=True):
            assert one.shape == other.shape
            assert float((one - other).abs().mean()) < 0.05 * float(one.abs().max())


def test_what_a_network_answers_keeps_its_form() -> None:
    a, b, c = (torch.full((1,), float(n)) for n in range(3))
    for form in (a, (a, b), [a, {"boxes": b, "scores": (c,)}]):
        assert nested(nesting(form), iter(flat(form))) == form
    with pytest.raises(TypeError):
        nesting("text")


@SMALL
def test_an_expert_in_int8_is_sound_and_tells_how_far_it_agrees(prepared: Store, expert: Expert) -> None:
    known = prepared.check(expert.weights).variants
    assert (known["int8"].agreement.images, known["int8"].agreement.generated) == (12, False)  # type: ignore[union-attr]
    assert 0 < known["int8"].escalate_below <= 1


def test_int8_is_not_made_without_pictures(prepared: Store, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put("line/joint", kind="narrow", labels=CLASSIFIER.labels, input_size=64, state=trained(CLASSIFIER))
    outcome = Preparer(store, ["int8", "q8"]).prepare("line/joint")
    assert (list(outcome.failed), outcome.made) == (["int8"], ("q8",))
    assert "--images" in outcome.failed["int8"]


def test_blank_pictures_teach_nothing() -> None:
    kind = kinds.resolve("narrow")
    assert isinstance(kind, kinds.ModuleKind)
    module = network(kind, CLASSIFIER, trained(CLASSIFIER))
    exported = int8.export(kind, CLASSIFIER, module, images(CLASSIFIER))
    with pytest.raises(StoreError, match="blank"):
        int8.quantised(exported, [np.full((3, 64, 64), 9, np.uint8)] * 4, float_ends=False)


def test_a_model_that_says_something_else_than_torch_is_refused() -> None:
    class Odd(type(kinds.resolve("narrow"))):  # type: ignore[misc]
        """In a trace, Python's condition is a constant of the first batch."""

        def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = super().forward(module, images)
            return logits * 2 if len(images) > 2 else logits

    kind = Odd()
    for count in (5, 1):  # one picture proves it for batches of other sizes as well
        with pytest.raises(StoreError):
            int8.export(kind, CLASSIFIER, network(kind, CLASSIFIER, trained(CLASSIFIER)), images(CLASSIFIER, count))


def test_a_line_in_mixed_precision_runs_it_and_looks_twice_where_it_doubts(prepared: Store, tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(BOARD, encoding="utf-8")
    seen = [np.ascontiguousarray(picture.transpose(1, 2, 0)) for picture in images(CLASSIFIER, 9)]
    labels = {}
    for precision in ("fp32", "mixed"):
        with Inspector(tmp_path / "line.yaml", store=prepared.root, precision=precision, memory="64MB") as line:
            results = [future.result(60) for future in [line.submit(picture, "C") for picture in seen]]
        labels[precision] = [result.findings[-1].label for result in results]
        variants = {finding.variant for result in results for finding in result.findings}
        assert variants <= ({"fp32"} if precision == "fp32" else {"fp32", "bf16", "int8"})
    assert labels["mixed"] == labels["fp32"]


def test_mixed_takes_it_where_it_is_quicker_and_agrees(prepared: Store, tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(BOARD, encoding="utf-8")
    graph = load(tmp_path / "line.yaml").graph
    offers = {"joint": prepared.manifest("line/joint").variants}
    slow, quick = (Cost(seconds, 0.0, 1e-3, 1000, 10) for seconds in (4e-3, 1e-3))
    costs = {("cpu", "joint", "fp32"): slow, ("cpu", "joint", "int8"): quick}
    agreed = offers["joint"]["int8"].agreement
    assert agreed is not None
    choice = choose("mixed", offers, graph, costs, 10_000, floor=agreed.labels_equal)
    assert choice.variants == {"joint": "int8"}
    assert choose("mixed", offers, graph, {**costs, ("cpu", "joint", "int8"): slow}, 10_000, floor=0).variants == {
        "joint": "fp32"
    }


def test_a_profile_measures_prepared_variants_as_the_engine_runs_them(prepared: Store) -> None:
    expert, kind = replace(CLASSIFIER, variant="fp32"), kinds.resolve("narrow")

    def profile(backend: Literal["torch", "onnxruntime"], precision: Literal["q8", "int8"]) -> KindProfile:
        target = Target("cpu", 1, backend, precision)
        return measure(MeasuredExpert(expert, kind, prepared, target), sizes=(1, 2), limit_s=0.2)

    measured = profile("onnxruntime", "int8")
    assert (measured.backend, measured.precision, len(measured.batches)) == ("onnxruntime", "int8", 2)
    assert measured.weights_bytes >= prepared.manifest("line/joint").variants["int8"].bytes
    with pytest.raises(CannotMeasure, match="q8"):
        profile("torch", "q8")


def test_a_damaged_model_fails_its_expert_alone(prepared: Store, pictures: list[Path], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put("line/joint", kind="narrow", labels=CLASSIFIER.labels, input_size=64, state=trained(CLASSIFIER))
    Preparer(store, ["int8"]).prepare("line/joint", pictures)
    path = store.folder("line/joint") / store.manifest("line/joint").variants["int8"].file
    raw = bytearray(path.read_bytes())
    raw[-5000] ^= 1
    path.write_bytes(raw)
    device = CpuDevice(store, {"narrow": kinds.resolve("narrow")}, 1)
    with pytest.raises(StoreError, match="line/joint"):
        device.load("pool", CLASSIFIER)
    with pytest.raises(StoreError, match="prepare"):
        OnnxNetwork(b"no model", 1, "line/joint/int8")


@pytest.mark.slow
def test_experts_come_and_go_and_leave_no_memory(pictures: list[Path], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.put("line/body", kind="resnet18", labels=RESNET.labels, input_size=32, state=trained(RESNET))
    assert Preparer(store, ["int8"]).prepare("line/body", pictures).failed == {}
    kind = kinds.resolve("resnet18")
    device = CpuDevice(store, {"resnet18": kind}, 1)
    batch = [kind.preprocess(np.full((50, 50, 3), grey, np.uint8), RESNET) for grey in (10, 200)]
    resident: list[int] = []
    for _ in range(3):
        for _ in range(8):
            device.load("pool", RESNET)
            assert len(device.run("e", "pool", RESNET, batch)) == 2
            device.evict("pool", RESNET)
        device.trim()
        give_memory_back()
        resident.append(psutil.Process().memory_info().rss)
    # Sessions that stayed would leave their weights 16 times.
    assert resident[2] - resident[0] < 4 * store.manifest("line/body").variants["int8"].bytes
