"""A frozen body that onnxruntime computes in place of torch: the same numbers, once for all experts, in the budget."""

import gc
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from built_once import Build
from common_trunk import AGREEMENT
from safetensors.torch import load_file

from coe.core import Expert
from coe.inspector.measuring import measure
from coe.prepare.fold import fold, network
from coe.prepare.layout import lay_out
from coe.runtime import sessions
from coe.runtime.activations import peak_growth_bytes
from coe.runtime.cpu import CpuDevice
from coe.scheduler.costs import Body
from coe.store import bodies, kinds
from coe.store.blob_format import Variant
from coe.store.random_weights import random_weights
from coe.store.store import Store
from coe.store.variants import put
from coe.store.weights_file import header
from coe.system import give_memory_back

KINDS = {name: kinds.resolve(name) for name in ("probe", "patch")}
PROBE = KINDS["probe"]
VARIANTS: tuple[Variant, ...] = ("fp32", "q8")


def expert_of(kind: str, size: int = 64, name: str = "u1", variant: Variant = "fp32") -> Expert:
    return Expert(name, kind, ("strange",) if kind == "patch" else ("bad", "ok"), size, f"b/{name}", variant=variant)


def state_of(expert: Expert, backbone: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    own = random_weights(KINDS[expert.kind], expert, seed)
    theirs = {f"backbone.{name}": tensor for name, tensor in load_file(backbone).items()}
    return own | {name: theirs[name] for name in own if name in theirs}


@pytest.fixture(scope="module")
def store(backbone: Path, built_once: Build) -> Store:
    """Two probes with one body, prepared, and one that is not; do not change them."""

    def make(folder: Path) -> None:
        store = Store(folder)
        for seed, name in enumerate(("u1", "u2", "bare")):
            expert = expert_of("probe", name=name)
            state = state_of(expert, backbone, seed)
            store.put(expert.weights, kind="probe", labels=expert.labels, input_size=64, state=state)
            identity = header(store.path(expert.weights)).identity
            for variant in VARIANTS if name != "bare" else ():
                made = lay_out(fold(PROBE, expert, state), variant, kind="probe", labels=2, identity=identity)
                with store.changing(expert.weights) as manifest:
                    put(store, manifest, made.bytes, agreement=AGREEMENT, escalate_below=0.0)
            bodies.divide_backbone(store, expert.weights)

    return Store(built_once("probes", make))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[object]:
    """The sessions of bodies that are open."""
    kept: weakref.WeakSet[object] = weakref.WeakSet()
    network = sessions.OnnxNetwork

    def opening(*words: object, **options: object) -> object:
        session = network(*words, **options)
        kept.add(session)
        return session

    monkeypatch.setattr(sessions, "OnnxNetwork", opening)
    return kept


def said(device: CpuDevice, expert: Expert) -> torch.Tensor:
    picture = np.random.default_rng(3).integers(0, 256, (96, 64, 3), np.uint8)
    outputs = device.outputs("one", "pool", expert, [PROBE.preprocess(picture, expert)])
    return torch.cat((outputs["logits"], outputs["unlike"][:, None]), dim=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 72, 104])
def test_a_session_gives_the_maps_that_torch_gives(kind: str, size: int, backbone: Path) -> None:
    expert, one = expert_of(kind, size), KINDS[kind]
    folded = fold(one, expert, state_of(expert, backbone))
    module = network(one, expert, folded.state, folded.pairs)
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    model, weights = one.body_model(module), dict(module.backbone.named_parameters(prefix="backbone"))
    with torch.inference_mode():
        expected = one.maps(module, images)
        module.body_session = sessions.OnnxNetwork(model, 1, kind, weights, one_at_a_time=True)
        found = one.maps(module, images)
    for map_, other in zip(expected, found, strict=True):
        assert torch.allclose(map_, other, rtol=0, atol=1e-5 * float(map_.abs().max()))


def test_batch_norms_that_are_not_folded_are_left_to_torch(backbone: Path) -> None:
    expert = expert_of("probe")
    assert PROBE.body_model(network(PROBE, expert, state_of(expert, backbone))) is None


def test_experts_of_a_body_have_one_session_as_long_as_it_is_there(
    store: Store, opened: weakref.WeakSet[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (expert_of("probe", name=name) for name in ("u1", "u2"))
    alone, device = (CpuDevice(store, {"probe": PROBE}, 1) for _ in range(2))
    alone.load("pool", first)  # its body is its own, for torch
    alone.load("pool", second)
    assert not opened
    for number, expert in enumerate((first, second)):
        device.load("pool", expert, body=number == 0)
        assert torch.allclose(said(device, expert), said(alone, expert), rtol=1e-4, atol=1e-4)
    assert len(opened) == 1
    digest = store.manifest("b/u1").variants["fp32"].body.digest
    device.evict("pool", first)
    said(device, second)
    device.evict("pool", second, body=digest)
    gc.collect()
    assert not opened
    device.load("pool", first, body=True)
    assert torch.allclose(said(device, first), said(alone, first), rtol=1e-4, atol=1e-4)
    device.leave()
    gc.collect()
    assert not opened


@pytest.mark.parametrize(("name", "variant"), [("u1", "q8"), ("bare", "fp32")])
def test_other_precisions_and_weights_as_they_were_trained_run_in_torch(
    store: Store, opened: weakref.WeakSet[object], name: str, variant: Variant
) -> None:
    expert, device = expert_of("probe", name=name, variant=variant), CpuDevice(store, {"probe": PROBE}, 1)
    device.load("pool", expert, body=True)
    assert bool(said(device, expert).isfinite().all())
    assert not opened


def costs_of_bodies(store: Store, experts: list[Expert], device: CpuDevice) -> list[Body]:
    manifests = {expert.weights: store.manifest(expert.weights) for expert in experts}
    costs = measure(experts, {"cpu": device}, manifests, {"probe": PROBE}, lambda sentence: None)
    return [body for expert in experts if (body := costs["cpu", expert.id, expert.variant].body)]


def test_a_pool_counts_the_session_of_a_body_and_a_device_once_what_opening_it_needs(store: Store) -> None:
    experts = [expert_of("probe", name=name, variant=variant) for name, variant in (("u1", "fp32"), ("u2", "q8"))]
    experts.append(expert_of("probe", name="bare"))
    device = CpuDevice(store, {"probe": PROBE}, 1)
    body, *others = costs_of_bodies(store, experts, device)
    files = [store.manifest("b/u1").variants["fp32"], store.manifest("b/u2").variants["q8"], store.manifest("b/bare")]
    size, *plain = (file.body.bytes for file in files if file.body is not None)
    assert 2 * size < body.bytes < 3 * size
    once, of_four = (device.fixed_bytes(experts[:1], executors) for executors in (1, 4))
    assert 2 * size < once <= of_four < once + size
    assert device.fixed_bytes(experts[2:], 1) == 0
    assert [0 <= other.bytes - own < 4096 for other, own in zip(others, plain, strict=True)] == [True, True]


@pytest.mark.stress
def test_opening_the_session_of_a_body_takes_no_more_than_is_counted(store: Store) -> None:
    experts, device = [expert_of("probe", name="u1")], CpuDevice(store, {"probe": PROBE}, 1)
    (body,) = costs_of_bodies(store, experts, device)
    give_memory_back()
    before = int(psutil.Process().memory_info().rss)
    grown = peak_growth_bytes(lambda: device.load("pool", experts[0], body=True))
    assert grown is None or grown <= body.bytes + device.fixed_bytes(experts, 1)
    assert psutil.Process().memory_info().rss - before <= body.bytes + (1 << 20)
