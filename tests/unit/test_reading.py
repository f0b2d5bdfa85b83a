"""Blobs: read as they were laid out, bound to a network, unpacked and folded on a device."""

import os
import threading

import pytest
import torch
from bare_kind import BareKind
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from stored import KIND, STATE, expert, file_of, stored
from torch import nn

from coe.core import Expert
from coe.errors import StoreError
from coe.helpers import regular
from coe.runtime.blob import Buffers, Structure, folded_skeleton
from coe.runtime.cuda.unpacking import Unpacking, structure_on_gpu, unpack, unpacking_like
from coe.runtime.reading import weights
from coe.runtime.slot import Slot, SlotShelf
from coe.store import blob_format
from coe.store.blob_format import Content
from coe.store.kinds import resolve
from coe.store.store import Store
from coe.variants.fold import Folded
from coe.variants.layout import lay_out, tensors

PREPARED = ("fp32", "fp16", "q8")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("store"), *PREPARED)


def read(store, variant="fp32", buffers=None, **changes):
    return weights(store, expert(variant, **changes)).read(buffers or Buffers())


def test_an_expert_that_is_not_prepared_runs_as_it_was_trained(tmp_path):
    state = {
        **STATE,
        "odd": torch.ones(7, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "nothing": torch.zeros(0, 3),
    }
    blob = read(stored(tmp_path, state=state))
    assert set(blob.tensors) == set(state)
    for name, tensor in state.items():
        assert torch.equal(blob.tensors[name], tensor)
        assert blob.tensors[name].dtype == tensor.dtype
    alone = read(stored(tmp_path / "alone", state={"weight": STATE["fc.weight"]}))
    assert alone.tensors["weight"].data_ptr() % blob_format.ALIGNMENT == 0, "it begins a line of the cache"


def test_a_blob_is_read_as_it_was_laid_out(store):
    expected = tensors(lay_out(Folded(STATE, ()), "fp32", kind="tiny", labels=2))
    blob = read(store)
    assert set(blob.tensors) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(blob.tensors[name], tensor)
        assert blob.tensors[name].stride() == tensor.stride()
        assert blob.tensors[name].data_ptr() % blob_format.ALIGNMENT == 0


@pytest.mark.parametrize("variant", PREPARED)
def test_safetensors_reads_a_blob_whose_bytes_are_all_told(store, variant):
    with safe_open(file_of(store, variant), "pt") as blob:
        assert ("coe.scales" in set(blob.keys())) == (variant == "q8")


def test_what_is_not_prepared_is_of_another_kind_or_on_a_disk_that_fails_is_said(tmp_path, store, monkeypatch):
    with pytest.raises(StoreError, match=r"q8.*`coe-experts prepare t/x`"):
        read(stored(tmp_path, "fp16"), "q8")
    for changes in ({"kind": "other"}, {"labels": ("a", "b", "c")}):
        with pytest.raises(StoreError, match="of kind tiny"):
            read(store, **changes)

    def fails(*args):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(regular, "read_into", fails)
    with pytest.raises(StoreError, match=r"cannot be read: Input/output error"):
        read(store)


def test_what_is_loaded_is_what_the_file_was_when_it_was_opened(tmp_path, monkeypatch):
    """Somebody prepares the expert again, and a new file takes the place of the one that is being read."""
    store = stored(tmp_path, "fp32")
    path, read_into = file_of(store, "fp32"), regular.read_into

    def replaced_meanwhile(*args):
        if path.exists():
            path.unlink()
        return read_into(*args)

    monkeypatch.setattr(regular, "read_into", replaced_meanwhile)
    assert torch.equal(read(store).tensors["fc.bias"], STATE["fc.bias"])


def _in_chunk(number):
    def change(data):
        changed = bytearray(data)
        changed[blob_format.data_start(data, "") + (number - 1) * blob_format.CHUNK + 99] ^= 1
        return changed

    return change


def _of_other_weights(folder):
    other = stored(folder / "other", "fp32", state={"conv.weight": STATE["conv.weight"] + 1})
    return file_of(other, "fp32").read_bytes()


DAMAGE = {
    "chunk 1": ("fp32", _in_chunk(1), r"^t/x/fp32-.* chunk 1 of 2"),
    "chunk 2": ("fp32", _in_chunk(2), r"^t/x/fp32-.* chunk 2 of 2"),
    "version 7": ("fp32", lambda data: data.replace(b'"coe.blob":"2"', b'"coe.blob":"7"'), "version 7"),
    "another start": ("fp32", lambda data: b"CoE-blob" + data[8:], "is not a blob, or is truncated; prepare"),
    "other weights": ("fp32", _of_other_weights, "manifest"),
}
for keep in (0, 7, 4096, -1):
    DAMAGE[f"cut at {keep}"] = ("q8", lambda data, keep=keep: data[:keep], "t/x/q8-")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_blob_that_is_damaged_or_another_is_refused(tmp_path, damage):
    variant, change, words = DAMAGE[damage]
    store = stored(tmp_path / "own", variant)
    path = file_of(store, variant)
    path.write_bytes(change(tmp_path if change is _of_other_weights else path.read_bytes()))
    with pytest.raises(StoreError, match=words):
        read(store, variant)
    path.unlink()
    with pytest.raises(StoreError, match=f"t/x/{variant}-"):
        read(store, variant)


@given(st.sampled_from(PREPARED), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_no_bit_can_be_flipped_unseen(store, variant, where, bit):
    path = file_of(store, variant)
    whole = path.read_bytes()
    data = bytearray(whole)
    data[int(where * len(data))] ^= 1 << bit
    buffers = Buffers()
    try:
        path.write_bytes(data)
        with pytest.raises(StoreError, match=rf"^t/x/{variant}-"):
            read(store, variant, buffers)
    finally:
        path.write_bytes(whole)
    assert buffers.allocated_bytes == buffers.idle_bytes
    read(store, variant, buffers)


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error_not_the_end(tmp_path, monkeypatch):
    store = stored(tmp_path, "fp32")
    path, read_into = file_of(store, "fp32"), regular.read_into

    def shortened_meanwhile(*args):
        os.truncate(path, 10_000)
        return read_into(*args)

    monkeypatch.setattr(regular, "read_into", shortened_meanwhile)
    with pytest.raises(StoreError, match="10,000 bytes"):
        read(store)


@given(st.floats(0, 1, exclude_max=True))
def test_no_bit_of_the_weights_can_be_flipped_unseen(tmp_path_factory, where):
    store = stored(tmp_path_factory.mktemp("own"), state={"w": torch.ones(3000)})
    path = store.path("t/x")
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 16
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"t/x/weights\.safetensors"):
        read(store)


def test_weights_of_another_shape_are_named(tmp_path):
    blob = read(stored(tmp_path))
    spec = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in STATE.items()}
    blob.expect(spec)
    with pytest.raises(StoreError, match=r"'fc.bias' is \(300,\) torch.float32, not \(4, 4\)"):
        blob.expect({**spec, "fc.bias": ((4, 4), torch.float32)})
    with pytest.raises(StoreError, match=r"'fc.bias' is .* not \(300,\) torch.bfloat16"):
        blob.expect({**spec, "fc.bias": ((300,), torch.bfloat16)})
    with pytest.raises(StoreError, match="lack 'bias'"):
        blob.expect({**spec, "bias": ((1,), torch.float32)})
    del spec["count"]
    with pytest.raises(StoreError, match="hold 'count'"):
        blob.expect(spec)


def test_the_next_expert_takes_the_memory_of_the_last_unless_it_is_still_looked_at(store):
    buffers = Buffers()
    blob = read(store, buffers=buffers)
    place = blob.tensors["fc.bias"].data_ptr()
    blob.release()
    assert blob.tensors == {}
    assert read(store, buffers=buffers).tensors["fc.bias"].data_ptr() == place
    buffers = Buffers()
    blob = read(store, buffers=buffers)
    kept = blob.tensors["fc.bias"]
    blob.release()
    other = read(store, "q8", buffers)
    assert torch.equal(kept, STATE["fc.bias"])
    assert other.tensors["fc.bias"].data_ptr() != kept.data_ptr()


EXPERT = Expert("x", "scale", ("ok",), 8, "t/x")


class Scale(BareKind):
    """A network of one weight; `gate` lets a test hold a batch."""

    name = "scale"

    def __init__(self):
        self.began = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def skeleton(self, expert):
        return torch.nn.Linear(1, 1, bias=False)

    def forward(self, module, images):
        self.began.set()
        assert self.gate.wait(30)
        return module(images.float().mean(dim=(1, 2, 3))[:, None])


@pytest.fixture
def blobs(tmp_path):
    store, made = Store(tmp_path), []
    for scale in (2.0, 3.0):
        state = {"weight": torch.tensor([[scale]])}
        store.put(EXPERT.weights, kind="scale", labels=EXPERT.labels, input_size=8, state=state)
        made.append(weights(store, EXPERT).read(Buffers()))
    return made


IMAGES = torch.full((1, 3, 8, 8), 10, dtype=torch.uint8)


def test_the_bound_blob_decides_and_weights_are_views_of_it(blobs):
    slot = Slot(Scale(), EXPERT)
    assert [slot.run(blob, IMAGES).item() for blob in (*blobs, blobs[0])] == [20.0, 30.0, 20.0]
    slot.run(blobs[0], IMAGES)
    assert slot.module.weight.data_ptr() == blobs[0].tensors["weight"].data_ptr()
    slot.unbind(blobs[1])
    assert slot.module.weight.numel() == 1
    slot.unbind(blobs[0])
    assert slot.module.weight.numel() == 0


def test_another_blob_can_be_evicted_while_a_batch_runs(blobs):
    kind = Scale()
    slot = Slot(kind, EXPERT)
    slot.run(blobs[1], IMAGES)
    kind.began.clear()
    kind.gate.clear()
    batch = threading.Thread(target=slot.run, args=(blobs[0], IMAGES))
    batch.start()
    assert kind.began.wait(30)
    lane = threading.Thread(target=slot.unbind, args=(blobs[1],))
    lane.start()
    lane.join(10)
    waits = lane.is_alive()
    kind.gate.set()
    batch.join()
    lane.join()
    assert not waits


class Plain(BareKind):
    """The tensors of `stored.STATE` as a network, which answers with all that it holds."""

    name = KIND

    def skeleton(self, expert):
        module = torch.nn.Module()
        module.conv = torch.nn.Conv2d(9, 20, 3, bias=False)
        module.fc = torch.nn.Linear(1000, 300)
        module.register_buffer("count", torch.tensor(0))
        return module

    def forward(self, module, images):
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_a_blob_that_was_released_never_runs_again(tmp_path):
    blob = weights(stored(tmp_path, "fp32"), expert()).read(Buffers())
    slot = Slot(Plain(), expert(), blob.structure)
    blob.expect(slot.spec)
    found = slot.run(blob, IMAGES)
    assert all(torch.equal(found[name], tensor) for name, tensor in STATE.items())
    assert slot.module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert slot.module.fc.weight.data_ptr() == blob.tensors["fc.weight"].data_ptr()
    slot.unbind(blob)
    blob.release()
    assert slot.module.fc.weight.numel() == 0
    with pytest.raises(RuntimeError, match="after it was released"):
        slot.run(blob, IMAGES)


def test_two_executors_share_no_slot_and_networks_that_differ_do_neither(tmp_path):
    shelf = SlotShelf({KIND: Plain()})
    blob = weights(stored(tmp_path, "fp32"), expert()).read(Buffers())
    other = expert(labels=("a", "b", "c"))
    key = shelf.key(expert(), blob.structure)
    one, two = shelf.of("one", expert(), key), shelf.of("two", expert(), key)
    further = shelf.of("one", other, shelf.key(other, blob.structure))
    assert len({id(slot) for slot in (one, two, further)}) == 3
    assert one is shelf.of("one", expert(), key)


def shared_blobs(store, buffers):
    """Return the blobs of two experts that share a body, which is the first blob."""
    files = [weights(store, Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}")) for id in "ab"]
    body = files[0].body.read(buffers)
    return [body, *(file.read(buffers, body) for file in files)]


def test_a_body_stays_in_place_and_the_experts_own_tensors_are_bound(shared_trunk, prepared_trunk):
    kind, buffers, images = resolve("narrow"), Buffers(), torch.full((1, 3, 32, 32), 90, dtype=torch.uint8)
    experts = [Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}") for id in "ab"]
    whole = [weights(Store(prepared_trunk), expert).read(buffers) for expert in experts]
    expected = [Slot(kind, experts[0], blob.structure).run(blob, images).tolist() for blob in whole]
    body, *own = shared_blobs(Store(shared_trunk), buffers)
    slot = Slot(kind, experts[0], own[0].structure)
    for blob in own:
        blob.expect(slot.spec)
    # To the bit as from whole blobs, whichever was bound before.
    assert [slot.run(own[turn], images).tolist() for turn in (0, 1, 0)] == [expected[turn] for turn in (0, 1, 0)]
    # The body survives the eviction of an expert, and not its own.
    slot.unbind(own[0])
    weight = slot.module.conv1.weight
    assert weight.data_ptr() == body.tensors["conv1.weight"].data_ptr()
    assert slot.run(own[1], images).tolist() == expected[1]
    slot.unbind(body)
    assert weight.numel() == 0
    assert slot.run(own[1], images).tolist() == expected[1]


def test_weights_that_were_released_with_their_body_are_refused(shared_trunk):
    kind, buffers = resolve("narrow"), Buffers()
    body, own, _ = shared_blobs(Store(shared_trunk), buffers)
    body.release()
    slot = Slot(kind, Expert("a", "narrow", ("ok", "bad"), 32, "trunk/a"), own.structure)
    with pytest.raises(RuntimeError, match="released"):
        slot.bind(own)


def run_in(variant, root, *prepared):
    file = weights(stored(root, *prepared), expert(variant))
    buffer, content = file.content(Buffers())
    assert file.outline().entries == content.entries
    unpacking = Unpacking(content, structure_on_gpu(content))
    with buffer.part(0, len(buffer)) as (data,):
        blob = torch.tensor(list(data[content.start : content.start + content.data_bytes]), dtype=torch.uint8)
    place = torch.full((unpacking.bytes,), 0x7F, dtype=torch.uint8)
    unpack(unpacking.sources(blob), unpacking.targets(place))
    return unpacking, unpacking.views(place)


@pytest.mark.parametrize(
    ("variant", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("q8", torch.float16)]
)
def test_the_numbers_are_those_of_the_blob(variant, dtype, tmp_path):
    unpacking, found = run_in(variant, tmp_path, variant)
    for name, tensor in tensors(lay_out(Folded(STATE, ()), variant, kind="tiny", labels=2)).items():
        assert found[name].dtype == (dtype if tensor.is_floating_point() else tensor.dtype)
        assert torch.allclose(found[name].double(), tensor.double(), rtol=1e-3 if variant == "q8" else 0, atol=1e-6)
        assert found[name].data_ptr() % 16 == 0
    assert found["conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert len(unpacking.steps) <= 4
    assert variant != "fp16" or [step.dtype for step in unpacking.steps].count(torch.float16) == 1, "one type in a row"


def test_weights_as_they_were_trained_run_as_they_lie(tmp_path):
    unpacking, found = run_in("fp32", tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in STATE.items())
    assert len(unpacking.steps) == 2


def test_an_unpacking_for_any_weights_has_their_size_and_lays_them_out_as_a_blob_does():
    spec = {"conv": ((4, 3, 3, 3), torch.float32), "line": ((4, 3), torch.float32), "n": ((), torch.int64)}
    unpacking = unpacking_like(spec, Structure(torch.float16))
    found = unpacking.views(torch.zeros(unpacking.bytes, dtype=torch.uint8))
    assert found["conv"].is_contiguous(memory_format=torch.channels_last)
    assert found["line"].is_contiguous()
    half = {name: (shape, torch.float16 if dtype.is_floating_point else dtype) for name, (shape, dtype) in spec.items()}
    assert {name: (place.entry.shape, place.dtype) for name, place in unpacking.places.items()} == half


def test_a_tensor_that_no_gpu_can_take_is_refused(tmp_path):
    entry = weights(stored(tmp_path), expert()).outline().entries[0]
    with pytest.raises(StoreError, match="aligned"):
        Unpacking(Content((entry.model_copy(update={"offset": 3}),)), Structure())


PAIRS = (("0", "1"), ("2.conv", "2.norm"))


def network():
    inner = nn.Sequential()
    inner.add_module("conv", nn.Conv2d(4, 2, 1))
    inner.add_module("norm", nn.BatchNorm2d(2))
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), inner, nn.BatchNorm2d(2)).eval()


def test_a_folded_convolution_has_a_bias_of_the_weights_own_kind_and_its_norm_has_no_tensors():
    module = network()
    assert folded_skeleton(module, PAIRS) is module
    found = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items() if not name.startswith("3.")}
    assert found == {"0.weight": (4, 3, 3, 3), "0.bias": (4,), "2.conv.weight": (2, 4, 1, 1), "2.conv.bias": (2,)}
    assert isinstance(module[3], nn.BatchNorm2d)
    assert not any(part.training for part in module.modules())
    module = folded_skeleton(network().to(torch.bfloat16).requires_grad_(False), PAIRS[:1])
    assert (module[0].bias.dtype, module[0].bias.requires_grad) == (torch.bfloat16, False)


@pytest.mark.parametrize("pair", [("0", "2.conv"), ("1", "0"), ("0", "gone"), ("gone.conv", "1"), ("", "1")])
def test_names_that_the_kind_does_not_have_are_refused(pair):
    with pytest.raises(StoreError, match="prepare the expert again"):
        folded_skeleton(network(), [pair])
