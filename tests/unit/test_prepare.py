"""Real networks prepared: folded they say the same, variants are what the manifest tells, and the command tells it."""

import functools
import shutil

import numpy as np
import pytest
import torch
from built_once import linked_copy
from PIL import Image
from tables import with_slow_rows
from tiny_line import STATED

from coe.cli import experts_command
from coe.core import Expert
from coe.errors import StoreError
from coe.store import kinds, skeletons
from coe.store.store import Store
from coe.variants.agreement import compare, escalate_below, findings
from coe.variants.calibration_images import generated, sample_images
from coe.variants.fold import network
from coe.variants.prepare import Preparer

CLASSIFIER = Expert("joint", "narrow", ("ok", "bad", "gone"), 64, "line/joint")
DETECTOR = Expert("bridge", "narrow_boxes", ("bridge", "gap"), 96, "line/bridge")
YOLO = Expert("mark", "yolov5n", ("mark", "scratch"), 96, "line/mark")
ALL = ("fp32", "fp16", "q8")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Operators of small networks wait for each other's threads longer than they calculate where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def weights(expert):
    """Random weights whose batch norms do something, as trained ones do; do not change them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = skeletons.skeleton(kinds.resolve(expert.kind), expert, optional=()).state_dict()
        for name, tensor in state.items():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.7, 1.5)
    return state


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with both experts; do not change it."""
    store = Store(tmp_path_factory.mktemp("filled") / "store")
    for expert in (CLASSIFIER, DETECTOR):
        store.put(
            expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=weights(expert)
        )
    return store


@pytest.fixture(scope="module")
def prepared(filled, tmp_path_factory):
    """A store whose experts are prepared; do not change it."""
    store = Store(linked_copy(filled.root, tmp_path_factory.mktemp("prepared") / "store"))
    for expert in (CLASSIFIER, DETECTOR):
        assert Preparer(store, ALL).prepare(expert.weights).made == ALL
    return store


@pytest.fixture
def store(filled, tmp_path):
    return Store(shutil.copytree(filled.root, tmp_path / "store"))


@pytest.mark.slow
def test_a_detector_of_full_width_is_sound_too(store):
    store.put(YOLO.weights, kind=YOLO.kind, labels=YOLO.labels, input_size=YOLO.input_size, state=weights(YOLO))
    first = Preparer(store, ALL).prepare(YOLO.weights)
    assert first.made == ALL
    sound(store, YOLO)
    again = Preparer(store, ALL, force=True).prepare(YOLO.weights)
    assert again.manifest.variants == first.manifest.variants


def sound(store, expert):
    manifest = store.check(expert.weights)
    assert tuple(manifest.variants) == ALL
    sizes = [variant.bytes for variant in manifest.variants.values()]
    assert manifest.bytes > sizes[0] > 1.9 * sizes[1] > 3.4 * sizes[2]
    for variant in manifest.variants.values():
        assert (variant.agreement.generated, variant.agreement.images) == (True, 16)
    exact = manifest.variants["fp32"]
    assert (exact.agreement.labels_equal, exact.escalate_below) == (1.0, 0.0)
    assert exact.agreement.largest_score_difference < 1e-4
    assert manifest.variants["q8"].escalate_below > 0


@pytest.mark.parametrize("expert", with_slow_rows([DETECTOR, CLASSIFIER], fast=1), ids=["narrow_boxes", "narrow"])
def test_the_same_weights_give_the_same_blobs(prepared, store, expert):
    again = Preparer(store, ALL).prepare(expert.weights).manifest
    assert again.variants == prepared.manifest(expert.weights).variants


def test_samples_that_are_given_are_used(store, tmp_path):
    paths = []
    for number in range(40):
        paths.append(tmp_path / f"{number}.png")
        pixels = np.random.default_rng(number).integers(0, 255, (50, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(paths[-1])
    paths[0].write_bytes(b"no image")
    found = Preparer(store, ["q8"]).prepare("line/joint", paths).manifest.variants["q8"].agreement
    assert (found.generated, found.images) == (False, 31)


def test_what_is_prepared_is_not_prepared_again_unless_it_is_damaged_or_forced(store):
    first = Preparer(store, ["fp32"])
    assert first.lacks("line/joint")
    assert first.prepare("line/joint").made == ("fp32",)
    assert not first.lacks("line/joint")
    assert Preparer(store, ["fp32", "q8"]).prepare("line/joint").made == ("q8",)
    path = store.folder("line/joint") / store.manifest("line/joint").variants["q8"].file
    path.write_bytes(path.read_bytes()[:-1])
    assert Preparer(store, ["fp32", "q8"]).prepare("line/joint").made == ("q8",)
    assert Preparer(store, ["fp32"], force=True).prepare("line/joint").made == ("fp32",)
    assert store.check("line/joint")


def test_experts_of_the_same_weights_share_their_blobs(store):
    store.link("line/twin", "line/joint", labels=("a", "b", "c"))
    preparer = Preparer(store, ["fp16"])
    assert preparer.prepare("line/joint").made == ("fp16",)
    assert preparer.prepare("line/twin").shared == ("fp16",)
    store.link("line/third", "line/joint", labels=("a", "b", "c"))
    later = Preparer(store, ["fp16", "q8"])
    assert [later.lacks(id) for id in ("line/joint", "line/twin")] == [True, True]
    assert later.prepare("line/twin").made == ("q8",)
    assert later.prepare("line/joint").shared == ("q8",)
    blobs = [store.folder(id) / store.manifest(id).variants["q8"].file for id in ("line/joint", "line/twin")]
    assert blobs[0].samefile(blobs[1])


def test_damaged_weights_are_not_prepared(store):
    path = store.path("line/joint")
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StoreError, match=r"line/joint: weights\.safetensors"):
        Preparer(store, ALL).prepare("line/joint")


def test_the_margin_catches_what_a_coarse_variant_says_otherwise():
    """The same weights with noise, as a variant so coarse that it often says something else."""
    kind, state = kinds.resolve("narrow"), weights(CLASSIFIER)
    images = sample_images(kind, CLASSIFIER, ()).prepared
    noisy = {name: t + 0.05 * t.std() * torch.randn_like(t) if t.ndim > 1 else t for name, t in state.items()}

    def said(weights):
        module = network(kind, CLASSIFIER, weights)
        return findings(
            kind, CLASSIFIER, images, lambda pixels: kind.forward(module, torch.from_numpy(pixels)).detach()
        )

    expected, found = said(state), said(noisy)
    limit = escalate_below(expected, found)
    assert all(other.margin < limit for one, other in zip(expected, found, strict=True) if one.label != other.label)
    assert compare(expected, found, generated=True).images == len(generated(16))


def test_the_command_prepares_what_lacks_a_variant_and_goes_on_after_an_error(store, call):
    store.path("line/bridge").write_bytes(b"")
    variants = ("--variants", "fp32,q8", "--store", store.root)
    said = call("prepare", *variants, command=experts_command)
    assert (said.status, "line/bridge: weights.safetensors" in said.err, "1 of 2 experts" in said.err) == (
        1,
        True,
        True,
    )
    rows = [line.split() for line in said.out.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["line/joint", "fp32"], ["line/joint", "q8"]]
    assert rows[1][-3:] == ["16", "generated", "never"]
    assert call("prepare", "line/joint", *variants, command=experts_command).status == 0
    assert "fp32, q8" in call("list", "--store", store.root, command=experts_command).out
    unknown = call("prepare", "line/joit", *variants, command=experts_command)
    assert (unknown.status, "'line/joint'" in unknown.err) == (1, True)


def test_import_prepares_by_itself_unless_told_not_to(call, tmp_path):
    torch.save(weights(CLASSIFIER), tmp_path / "good.pt")
    store = Store(tmp_path / "store")
    options = ("--kind", "narrow", "--labels", "a,b,c", "--input", 64, "--store", store.root, *STATED)
    for more, variants in (((), ("fp32", "q8")), (("--no-prepare",), ())):
        assert call("import", "t/x", tmp_path / "good.pt", *options, *more, command=experts_command).status == 0
        assert tuple(store.manifest("t/x").variants) == variants
