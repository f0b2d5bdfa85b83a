"""Experts in int8 through onnxruntime: they say what torch says, refuse what would make them blind, and come and go."""

import functools
import shutil
from dataclasses import replace

import numpy as np
import onnx
import psutil
import pytest
import torch
from PIL import Image

from coe import Inspector
from coe.cli import experts_command
from coe.core import Expert, Verdict
from coe.errors import StoreError
from coe.helpers.system import give_memory_back
from coe.pictures.decoding import decode
from coe.profiler.measure import CannotMeasure, MeasuredExpert, Target, measure
from coe.runtime.cpu import CpuDevice
from coe.runtime.onnx_network import READY, OnnxNetwork, flat, nested, nesting
from coe.scheduler.costs import Cost
from coe.store import kinds, skeletons, variants
from coe.store.learned import LearnedPictures, PictureDigests
from coe.store.store import Store
from coe.testing import Experiment
from coe.variants import int8, int8_trial
from coe.variants.calibration_images import MOST, sample_images
from coe.variants.fold import network
from coe.variants.int8_trial import fused
from coe.variants.layout import lay_out_model
from coe.variants.prepare import Preparer

CLASSIFIER = Expert("joint", "narrow", ("ok", "bad", "gone"), 64, "line/joint", variant="int8")
DETECTOR = Expert("bridge", "narrow_boxes", ("bridge", "gap"), 96, "line/bridge", variant="int8")
RESNET = Expert("body", "resnet18", ("ok", "bad"), 32, "line/body", variant="int8")
YOLO = Expert("mark", "yolov5n", ("mark", "scratch"), 64, "line/mark", variant="int8")
BOARD = """
board: line
experts:
  joint: {kind: narrow, labels: [ok, bad, gone], input: 64}
  bridge: {kind: narrow_boxes, labels: [bridge, gap], input: 96, reject: [bridge]}
components:
  C: {inspect: joint, then: {ok: OK, bad: NG, gone: NG}}
  D: {inspect: bridge, then: {bridge: NG, gap: OK, none: OK}}
"""


@functools.cache
def images(expert, count=5):
    chance, side = np.random.default_rng(1), expert.input_size
    return [
        chance.integers(0, 256, (3, side >> n % 3, side >> n % 3), np.uint8).repeat(1 << n % 3, 1).repeat(1 << n % 3, 2)
        for n in range(count)
    ]


@functools.cache
def trained(expert):
    """Random weights; do not change them."""
    return skeletons.random_weights(kinds.resolve(expert.kind), expert, 3)


def exported(expert=CLASSIFIER):
    return onnx.load_from_string(_exported(expert))


@functools.cache
def _exported(expert):
    kind = kinds.resolve(expert.kind)
    return int8.export(kind, expert, network(kind, expert, trained(expert)), images(expert)).SerializeToString()


@functools.cache
def quantised(expert):
    """Quantise the export of a network; do not change it."""
    return int8.Quantiser(exported(expert), images(expert, 8)).quantised()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number, pixels in enumerate(images(CLASSIFIER, 12)):
        Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


def put(store, expert, id=None):
    state, labels = trained(expert), expert.labels
    store.put(id or expert.weights, kind=expert.kind, labels=labels, input_size=expert.input_size, state=state)


@pytest.fixture(scope="module")
def prepared(pictures, tmp_path_factory):
    """A store with both small experts in int8; do not change it."""
    store = Store(tmp_path_factory.mktemp("int8") / "store")
    for expert in (CLASSIFIER, DETECTOR):
        put(store, expert)
        assert Preparer(store, ["fp32", "int8"]).prepare(expert.weights, pictures, "noise").failed == {}
    return store


@pytest.mark.parametrize(
    "expert",
    [CLASSIFIER, DETECTOR, pytest.param(RESNET, marks=pytest.mark.slow), pytest.param(YOLO, marks=pytest.mark.slow)],
    ids=["narrow", "narrow_boxes", "resnet18", "yolov5n"],
)
def test_a_quantised_network_says_nearly_the_same_for_batches_of_any_size(expert):
    kind = kinds.resolve(expert.kind)
    module = network(kind, expert, trained(expert))
    model, small = exported(expert), quantised(expert)
    for one in (model, small):  # nothing in it is of this processor
        assert {node.domain for node in one.graph.node} == {""}
        assert [(of.domain, of.version) for of in one.opset_import] == [("", int8.OPSET)]
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    int8_weights = [tensor for tensor in small.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    assert len(int8_weights) >= convolutions - 1  # of a distribution's mean, the weights are whole numbers
    assert small.ByteSize() < 0.5 * model.ByteSize()
    session = OnnxNetwork(small.SerializeToString(), 1, "m")
    for count in (1, 5, 2):
        batch = np.stack(images(expert, count))
        with torch.inference_mode():
            exact = flat(kind.forward(module, torch.from_numpy(batch)))
        seen = flat(session.run(batch))
        for one, other in zip(exact, seen, strict=True):
            assert one.shape == other.shape
            assert float((one - other).abs().mean()) < 0.05 * float(one.abs().max())


def test_what_a_network_answers_keeps_its_form_and_layers_stay_float_as_they_are_asked_to():
    a, b, c = (torch.full((1,), float(n)) for n in range(3))
    for form in (a, (a, b), [a, {"boxes": b, "scores": (c,)}]):
        assert nested(nesting(form), iter(flat(form))) == form
    with pytest.raises(TypeError):
        nesting("text")
    quantiser = int8.Quantiser(exported(), images(CLASSIFIER, 8))

    def weights_in_int8(in_float):
        kinds_of = [tensor.data_type for tensor in quantiser.quantised(in_float).graph.initializer if tensor.dims]
        return sum(one == onnx.TensorProto.INT8 for one in kinds_of)

    whole = weights_in_int8(())
    assert (len(quantiser.layers), quantiser.ends < set(quantiser.layers)) == (13, True)
    assert weights_in_int8(quantiser.layers[:3]) < whole
    assert weights_in_int8(quantiser.layers) == 0
    assert weights_in_int8(()) == whole


def test_a_manifest_tells_what_the_numbers_come_from(prepared):
    for expert in (CLASSIFIER, DETECTOR):
        variants = prepared.manifest(expert.weights).variants
        made_of = variants["int8"].calibration
        assert (made_of.pictures, made_of.source, made_of.learned, made_of.layers) == (12, "noise", None, 13)
        assert len(made_of.in_float) <= made_of.layers // 2
        assert variants["fp32"].calibration is None


def test_pictures_that_it_learned_from_come_first(pictures, tmp_path):
    many = []
    for number in range(4 * MOST):
        many.append(tmp_path / f"{number}.png")
        many[-1].write_bytes(pictures[number % 2].read_bytes() + bytes([number]))  # files differ, pixels do not
    seen = [PictureDigests.of_file(path, decode(path)) for path in many[-8:]]
    learned = LearnedPictures.of(PictureDigests(digest.file, 0) for digest in seen)
    samples = sample_images(kinds.resolve("narrow"), CLASSIFIER, many, learned)
    assert (len(samples.prepared), samples.learned) == (MOST, 8)
    assert sample_images(kinds.resolve("narrow"), CLASSIFIER, many).learned is None
    few = sample_images(kinds.resolve("narrow"), CLASSIFIER, many[-10:], learned)
    assert (len(few.prepared), few.learned) == (10, 8)


def test_experts_of_the_same_weights_share_it_only_if_they_see_the_same(pictures, tmp_path):
    store = Store(tmp_path / "store")
    put(store, CLASSIFIER)
    for copy in ("line/same", "line/other"):
        store.link(copy, "line/joint", labels=CLASSIFIER.labels)
    preparer = Preparer(store, ["q8", "int8"], search_s=0)
    preparer.prepare("line/joint", pictures)
    assert preparer.prepare("line/same", pictures).shared == ("q8", "int8")
    other = preparer.prepare("line/other", pictures[:8])
    assert (other.shared, other.made) == (("q8",), ("int8",))
    assert other.manifest.variants["int8"].calibration.pictures == 8


@pytest.mark.slow
def test_experts_of_one_body_begin_with_the_layers_that_stay_float_in_the_last(
    pictures, shared_trunk, tmp_path, monkeypatch
):
    begun = []

    def search(layers, *_, first, **__):
        begun.append(first)
        return frozenset(layers[:2])

    monkeypatch.setattr(int8_trial, "search", search)
    store = Store(shutil.copytree(shared_trunk, tmp_path / "store"))
    for ids in (["trunk/a", "trunk/b"], ["trunk/c", "trunk/d"]):
        preparer = Preparer(store, ["int8"])
        assert [preparer.prepare(id, pictures).failed for id in ids] == [{}, {}]
    kept = frozenset(store.manifest("trunk/a").variants["int8"].calibration.in_float)
    assert (len(kept), begun) == (2, [frozenset(), kept, kept, frozenset()])  # `d` has no body


def test_int8_is_not_made_without_pictures(prepared, tmp_path):
    store = Store(tmp_path / "store")
    put(store, CLASSIFIER)
    outcome = Preparer(store, ["int8", "q8"]).prepare("line/joint")
    assert (list(outcome.failed), outcome.made) == (["int8"], ("q8",))
    assert "--images" in outcome.failed["int8"]


@pytest.mark.parametrize(
    "seen",
    [
        [np.full((3, 64, 64), grey, np.uint8) for grey in range(20)],
        [*images(CLASSIFIER, 7), *[np.zeros((3, 64, 64), np.uint8)] * 20],
        images(CLASSIFIER, 7) * 4,
        images(CLASSIFIER, 7),
    ],
)
def test_pictures_that_teach_nothing_are_refused(seen):
    with pytest.raises(StoreError, match="--images") as caught:
        int8.Quantiser(exported(), seen)
    assert ("blank" in str(caught.value)) == (len(seen) > 7), "of none that is neither"


def test_a_model_is_fitted_to_the_processor_when_it_is_opened_and_one_newer_than_the_library_is_told():
    quantiser = int8.Quantiser(exported(), images(CLASSIFIER, 8))
    model = fused(quantiser.quantised(quantiser.layers[2:5]))
    assert READY not in {one.key for one in model.metadata_props}
    assert not model.graph.value_info  # a name that is gone may be another value's now
    for change in ({"ir_version": 99}, {"opset": 99}):
        model = exported()
        model.ir_version = change.get("ir_version", model.ir_version)
        model.opset_import[0].version = change.get("opset", model.opset_import[0].version)
        with pytest.raises(StoreError, match=r"line/joint: onnxruntime [0-9.]+ .*update onnxruntime"):
            OnnxNetwork(model.SerializeToString(), 1, "line/joint")


def test_a_model_that_says_something_else_than_torch_is_refused():
    class Odd(type(kinds.resolve("narrow"))):
        """In a trace, Python's condition is a constant of the first batch."""

        def forward(self, module, images):
            logits = super().forward(module, images)
            return logits * 2 if len(images) > 2 else logits

    kind = Odd()
    for count in (5, 1):  # one picture proves it for batches of other sizes as well
        with pytest.raises(StoreError):
            int8.export(kind, CLASSIFIER, network(kind, CLASSIFIER, trained(CLASSIFIER)), images(CLASSIFIER, count))


def test_a_profile_measures_prepared_variants_as_the_engine_runs_them(prepared):
    expert, kind = replace(CLASSIFIER, variant="fp32"), kinds.resolve("narrow")

    def profile(precision):
        target = Target("cpu", 1, precision)
        return measure(MeasuredExpert(expert, kind, prepared, target), sizes=(1, 2), limit_s=0.2)

    measured = profile("int8")
    assert (measured.backend, measured.precision, len(measured.batches)) == ("onnxruntime", "int8", 2)
    assert measured.weights_bytes >= prepared.manifest("line/joint").variants["int8"].bytes
    with pytest.raises(CannotMeasure, match="q8"):
        profile("q8")


def test_a_damaged_model_fails_its_expert_alone(prepared, tmp_path):
    store = Store(shutil.copytree(prepared.root, tmp_path / "store"))
    path = store.folder("line/joint") / store.manifest("line/joint").variants["int8"].file
    raw = bytearray(path.read_bytes())
    raw[-5000] ^= 1
    path.write_bytes(raw)
    device = CpuDevice(store, {"narrow": kinds.resolve("narrow")}, 1)
    with pytest.raises(StoreError, match="line/joint"):
        device.load("pool", CLASSIFIER)
    with pytest.raises(StoreError, match="prepare"):
        OnnxNetwork(b"no model", 1, "line/joint/int8")


@pytest.mark.usefixtures("measures_itself")
def test_an_int8_that_is_gone_is_told_when_a_line_opens(prepared, tmp_path):
    store = Store(shutil.copytree(prepared.root, tmp_path / "store"))
    (store.folder(CLASSIFIER.weights) / store.manifest(CLASSIFIER.weights).variants["int8"].file).unlink()
    (tmp_path / "line.yaml").write_text(BOARD, encoding="utf-8")
    said = []
    mixed = {"precision": "mixed", "experiment": Experiment(label_floor=0), "memory": "64MB"}
    with Inspector(tmp_path / "line.yaml", store=store.root, say=said.append, **mixed) as line:
        result = line.submit(np.ascontiguousarray(images(CLASSIFIER)[0].transpose(1, 2, 0)), "C").result(60)
    assert result.findings[-1].variant == "fp32"
    assert sum("int8" in sentence and CLASSIFIER.weights in sentence for sentence in said) == 1


@pytest.mark.slow
def test_each_expert_gets_its_own_pictures_alone(pictures, tmp_path, call):
    store = Store(tmp_path / "store")
    for name in ("joint", "lead"):
        put(store, CLASSIFIER, f"line/{name}")
    for number, path in enumerate(pictures):
        (folder := tmp_path / "seen" / "joint" / ("ok", "bad")[number % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)

    def prepare(*options):
        return call("prepare", "--images", tmp_path / "seen", "--store", store.root, *options, command=experts_command)

    assert prepare("--variants", "int8").status == 1
    made_of = store.manifest("line/joint").variants["int8"].calibration
    assert (made_of.pictures, made_of.source) == (12, "its pictures in seen")
    said = prepare()
    assert (said.status, "line/lead has no int8" in said.words) == (0, True)  # nobody asked for it by name
    assert store.manifest("line/lead").variants.keys() == {"fp32", "q8"}


def test_a_session_that_cannot_be_opened_is_the_error_of_its_expert_alone(prepared, tmp_path, monkeypatch):
    (tmp_path / "line.yaml").write_text(BOARD, encoding="utf-8")
    store = Store(shutil.copytree(prepared.root, tmp_path / "store"))
    blob = lay_out_model(b"no model", {}, kind="narrow", labels=3, identity=None)
    with store.changing("line/joint") as manifest:
        agreement = manifest.variants["int8"].agreement
        assert agreement is not None
        variants.put(store, manifest, blob.bytes, agreement=agreement, escalate_below=0.0)
    full, quick = Cost(4e-3, 0.0, 1e-3, 20_000_000, 10), Cost(1e-3, 0.0, 1e-3, 5_000_000, 10)
    monkeypatch.setattr(CpuDevice, "measure", lambda _, expert: quick if expert.variant == "int8" else full)
    picture = np.ascontiguousarray(images(DETECTOR, 1)[0].transpose(1, 2, 0))
    mixed = {"precision": "mixed", "experiment": Experiment(label_floor=0), "memory": "64MB"}
    with Inspector(tmp_path / "line.yaml", store=store.root, **mixed) as line:
        futures = [line.submit(picture, component) for component in "CDCD"]
        results = [future.result(60) for future in futures]
    assert [result.verdict for result in results] == [None, Verdict.OK, None, Verdict.OK]
    assert all("onnxruntime" in (result.error or "") for result in results[0::2])
    assert all(result.error is None and result.findings[0].variant == "int8" for result in results[1::2])


@pytest.mark.slow
def test_experts_come_and_go_and_leave_no_memory(pictures, tmp_path):
    store = Store(tmp_path / "store")
    put(store, RESNET)
    assert Preparer(store, ["int8"]).prepare("line/body", pictures).failed == {}
    kind = kinds.resolve("resnet18")
    device = CpuDevice(store, {"resnet18": kind}, 1)
    batch = [kind.preprocess(np.full((50, 50, 3), grey, np.uint8), RESNET) for grey in (10, 200)]
    resident = []
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


def test_what_a_batch_holds_goes_when_it_ends(prepared, monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # as commands have it
    kind, process = kinds.resolve("narrow"), psutil.Process()
    device = CpuDevice(prepared, {"narrow": kind}, 1)
    device.load("pool", CLASSIFIER)
    batch = [kind.preprocess(np.zeros((50, 50, 3), np.uint8), CLASSIFIER)] * 256
    held = []
    for some in (batch[:1], batch):
        device.run("e", "pool", CLASSIFIER, some)
        give_memory_back()
        held.append(process.memory_full_info().uss)
    assert held[1] - held[0] < 2 * len(batch) * batch[0].pixels.nbytes


def test_a_thread_that_ends_leaves_no_session_in_its_heap(prepared, monkeypatch):
    device = CpuDevice(prepared, {"narrow": kinds.resolve("narrow")}, 1)
    as_floats = replace(CLASSIFIER, id="floats", variant="fp32")
    for expert in (CLASSIFIER, as_floats):
        device.load("pool", expert)
    resident = []
    monkeypatch.setattr("coe.runtime.cpu.give_memory_back", lambda: resident.append(repr(device).split()[1]))
    for _ in range(2):
        device.leave()
    assert resident == ["1"]
    device.evict("pool", as_floats)


def test_a_blob_takes_no_memory_beside_what_a_session_left(prepared, monkeypatch):
    """A session that leaves keeps its place warm for the next session; a blob lies elsewhere."""
    done = []
    monkeypatch.setattr("coe.runtime.cpu.give_memory_back", lambda: done.append("memory goes back"))
    device = CpuDevice(prepared, {"narrow": kinds.resolve("narrow")}, 1)
    as_floats = replace(CLASSIFIER, variant="fp32")
    for act, expert in [
        (device.load, CLASSIFIER),
        (device.evict, CLASSIFIER),
        (device.load, as_floats),
        (device.evict, as_floats),
        (device.load, as_floats),
    ]:
        act("pool", expert)
        done.append(f"{act.__name__} {expert.variant}")
    goes = "memory goes back"
    assert done == [goes, "load int8", "evict int8", goes, "load fp32", "evict fp32", "load fp32"]
