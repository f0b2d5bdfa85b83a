"""A frozen body that onnxruntime computes in place of torch: the same numbers, once for all experts, in the budget."""

import gc
import weakref

import numpy as np
import psutil
import pytest
import torch
from common_trunk import AGREEMENT
from safetensors.torch import load_file

from coe.core import Expert
from coe.helpers.system import give_memory_back
from coe.runtime import cpu
from coe.runtime.cpu import CpuDevice
from coe.runtime.trial import peak_growth_bytes
from coe.store import bodies, kinds
from coe.store.skeletons import random_weights
from coe.store.store import Store
from coe.store.variants import put
from coe.store.weights_file import header
from coe.variants.fold import fold, network
from coe.variants.layout import lay_out

KINDS = {name: kinds.resolve(name) for name in ("probe", "patch")}
PROBE = KINDS["probe"]


def expert_of(kind, size=64, name="u1"):
    return Expert(name, kind, ("strange",) if kind == "patch" else ("bad", "ok"), size, f"b/{name}")


def state_of(expert, backbone, seed=0):
    own = random_weights(KINDS[expert.kind], expert, seed)
    theirs = {f"backbone.{name}": tensor for name, tensor in load_file(backbone).items()}
    return own | {name: theirs[name] for name in own if name in theirs}


@pytest.fixture(scope="module")
def store(backbone, built_once):
    """Two probes with one body, prepared, and one that is not; do not change them."""

    def make(folder):
        store = Store(folder)
        for seed, name in enumerate(("u1", "u2", "bare")):
            expert = expert_of("probe", name=name)
            state = state_of(expert, backbone, seed)
            store.put(expert.weights, kind="probe", labels=expert.labels, input_size=64, state=state)
            identity = header(store.path(expert.weights)).identity
            if name != "bare":
                made = lay_out(fold(PROBE, expert, state), "fp32", kind="probe", labels=2, identity=identity)
                with store.changing(expert.weights) as manifest:
                    put(store, manifest, made.bytes, agreement=AGREEMENT, escalate_below=0.0)
            bodies.divide_frozen(store, store.manifest(expert.weights), ("backbone.",))

    return Store(built_once("probes", make))


@pytest.fixture
def opened(monkeypatch):
    """The sessions of bodies that are open."""
    kept = weakref.WeakSet()
    network = cpu.OnnxNetwork

    def opening(*words, **options):
        session = network(*words, **options)
        kept.add(session)
        return session

    monkeypatch.setattr(cpu, "OnnxNetwork", opening)
    return kept


def said(device, expert):
    picture = np.random.default_rng(3).integers(0, 256, (96, 64, 3), np.uint8)
    outputs = device.outputs("one", "pool", expert, [PROBE.preprocess(picture, expert)])
    return torch.cat((outputs["logits"], outputs["unlike"][:, None]), dim=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 72, 104])
def test_a_session_gives_the_maps_that_torch_gives(kind, size, backbone):
    expert, one = expert_of(kind, size), KINDS[kind]
    folded = fold(one, expert, state_of(expert, backbone))
    module = network(one, expert, folded.state, folded.pairs)
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    model, weights = one.body_model(module), dict(module.backbone.named_parameters(prefix="backbone"))
    with torch.inference_mode():
        expected = one.maps(module, images)
        module.body_session = cpu.OnnxNetwork(model, 1, kind, weights, one_at_a_time=True)
        found = one.maps(module, images)
    for map_, other in zip(expected, found, strict=True):
        assert torch.allclose(map_, other, rtol=0, atol=1e-5 * float(map_.abs().max()))


def test_experts_of_a_body_have_one_session_that_stays(store, opened):
    first, second = (expert_of("probe", name=name) for name in ("u1", "u2"))
    device, in_torch = (CpuDevice(store, {"probe": PROBE}, 1) for _ in range(2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cpu, "open_body", lambda *_: False)
        for expert in (first, second):
            in_torch.load("pool", expert)
    assert not opened
    for expert in (first, second):
        device.load("pool", expert)
        assert torch.allclose(said(device, expert), said(in_torch, expert), rtol=1e-4, atol=1e-4)
    assert len(opened) == 1
    device.evict("pool", first)
    device.evict("pool", second)
    device.load("pool", first)
    assert torch.allclose(said(device, first), said(in_torch, first), rtol=1e-4, atol=1e-4)
    assert len(opened) == 1
    device.leave()
    gc.collect()
    assert not opened


def test_weights_as_they_were_trained_and_norms_that_are_not_folded_run_in_torch(store, opened, backbone):
    expert, device = expert_of("probe", name="bare"), CpuDevice(store, {"probe": PROBE}, 1)
    device.load("pool", expert)
    assert bool(said(device, expert).isfinite().all())
    assert not opened
    expert = expert_of("probe")
    assert PROBE.body_model(network(PROBE, expert, state_of(expert, backbone))) is None


def test_a_device_counts_a_body_once_with_its_session_and_what_opening_it_needs(store):
    experts = [expert_of("probe", name=name) for name in ("u1", "u2")]
    device = CpuDevice(store, {"probe": PROBE}, 1)
    size = store.manifest("b/u1").variants["fp32"].body.bytes
    once, of_both, of_four = (device.fixed_bytes(*some) for some in ((experts[:1], 1), (experts, 1), (experts[:1], 4)))
    assert 4 * size < once == of_both == of_four < 7 * size
    plain = store.manifest("b/bare").body.bytes
    assert plain <= device.fixed_bytes([expert_of("probe", name="bare")], 1) < plain + 4096
    device.load("pool", experts[0])
    assert device.fixed_bytes([], 1) >= 2 * size, "it stays, whatever experts are asked for"


@pytest.mark.stress
def test_opening_the_session_of_a_body_takes_no_more_than_is_counted(store):
    experts, device = [expert_of("probe", name="u1")], CpuDevice(store, {"probe": PROBE}, 1)
    counted = device.fixed_bytes(experts, 1)
    give_memory_back()
    before = int(psutil.Process().memory_info().rss)
    grown = peak_growth_bytes(lambda: device.load("pool", experts[0]))
    own = store.manifest("b/u1").variants["fp32"].bytes
    assert grown is None or grown <= own + counted
    assert psutil.Process().memory_info().rss - before <= own + counted + (1 << 20)
