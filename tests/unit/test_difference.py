"""The variant `delta`: experts as small differences to the network that they were fine-tuned from."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_gpu import FakeDriver
from fine_tuned import BOARD, LABELS, LINKS, PARENT, expert, fill, moved, put, random_state
from hypothesis import given
from hypothesis import strategies as st
from tables import with_slow_rows
from tiny_line import Call

from coe import Inspector, Picture
from coe.cli import experts_command
from coe.errors import ConfigError, StoreError
from coe.prepare import difference
from coe.prepare.fold import fold, network
from coe.prepare.layout import can_be_blocks, lay_out
from coe.prepare.prepare import Preparer
from coe.prepare.sharing import Sharing, stored
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.reading import weights
from coe.runtime.slot import Slot
from coe.store import blob_format, blob_writing, bodies
from coe.store.blob_format import Difference, Header, TensorEntry
from coe.store.kinds import ExpertInput, ModuleKind, resolve
from coe.store.store import Store

MEMORY = "27MB"
"""Room for all experts of the board as differences, and not for all of them in `q8`."""
IMAGES = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def store(fine_tuned: Path) -> Store:
    return Store(fine_tuned / "store")


@pytest.fixture
def own_store(fine_tuned: Path, tmp_path: Path) -> Store:
    return Store(shutil.copytree(fine_tuned / "store", tmp_path / "store"))


def narrow() -> ModuleKind:
    kind = resolve("narrow")
    assert isinstance(kind, ModuleKind)
    return kind


# The best change of a low rank


@given(
    rows=st.integers(2, 24),
    columns=st.integers(2, 24),
    rank=st.integers(1, 6),
    scaled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_change_of_low_rank_and_a_factor_for_each_row_are_found(
    rows: int, columns: int, rank: int, scaled: bool, seed: int
) -> None:
    rank = min(rank, rows, columns)
    chance = torch.Generator().manual_seed(seed)
    parent = torch.randn(rows, columns, generator=chance)
    low = torch.randn(rows, rank, generator=chance) @ torch.randn(rank, columns, generator=chance)
    factor = 0.5 + torch.rand(rows, 1, generator=chance) if scaled else torch.ones(rows, 1)
    # A factor for each row that is found from the rows themselves takes part of a low change with it: its rank may
    # grow by that, but what is left is never more than without factors.
    own = factor * parent + (0 if scaled else 1) * low
    made = difference.change(own, parent, rank)
    off = made.row[:, None] * parent + made.left.T @ made.right - own
    if scaled:
        assert off.abs().max() < 1e-4
    else:
        assert off.norm() <= (own - parent).norm() + 1e-4
    again = difference.change(own, parent, rank)
    assert all(torch.equal(getattr(made, part), getattr(again, part)) for part in ("row", "left", "right"))


@given(rows=st.integers(2, 20), columns=st.integers(2, 20), seed=st.integers(0, 99))
def test_what_is_left_is_the_least_that_any_change_of_the_rank_leaves(rows: int, columns: int, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    own, parent = (torch.randn(rows, columns, generator=chance) for _ in range(2))
    made = difference.change(own, parent, 1)
    rest = own - made.row[:, None] * parent
    left = (rest - made.left.T @ made.right).norm()
    strengths = torch.linalg.svdvals(rest.double())
    assert left == pytest.approx(strengths[1:].norm().item(), rel=1e-3, abs=1e-4)


def test_a_row_that_is_nearly_dead_in_the_parent_is_not_multiplied_beyond_what_a_gpu_holds() -> None:
    chance = torch.Generator().manual_seed(1)
    own = torch.randn(12, 20, generator=chance)
    parent = own.clone()
    parent[:2] *= 1e-6
    made = difference.change(own, parent, 3)
    assert made.row.abs().max() <= difference.LARGEST_FACTOR
    assert torch.allclose(made.row[:, None] * parent + made.left.T @ made.right, own, atol=1e-4)


def test_rows_of_zeros_change_too() -> None:
    own = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    made = difference.change(own, torch.zeros(2, 3), 1)
    assert torch.allclose(made.left.T @ made.right, own, atol=1e-6)
    assert made.row.tolist() == [1.0, 1.0]


# Preparing


def test_a_difference_takes_a_fraction_and_its_parent_lies_in_the_store_once(store: Store) -> None:
    manifests = [store.manifest(f"tuned/{name}") for name in "abc"]
    for manifest in manifests:
        store.check(manifest.id)
        delta, blocks = manifest.variants["delta"], manifest.variants["q8"]
        assert delta.bytes < 0.4 * blocks.bytes
        assert delta.agreement.labels_equal == 1.0
    (body,) = {manifest.variants["delta"].body for manifest in manifests}
    assert [path.name for path in store.bodies.glob("*.safetensors")] == [body.file]
    own = sum(manifest.variants["delta"].bytes for manifest in manifests)
    assert stored([one.variants["delta"] for one in manifests]) == own + body.bytes


def test_equal_tensors_take_nothing_and_a_head_of_other_labels_stays_whole(tmp_path: Path) -> None:
    kind, state = narrow(), random_state(LABELS["p"], 0)
    parent = difference.Parent.of(PARENT, "narrow", fold(kind, expert("p"), state))
    same = difference.own_part(fold(kind, expert("p"), state), parent, 8)
    assert same.differences == ()
    assert not [name for name, tensor in same.folded.state.items() if can_be_blocks(tensor)]
    other = difference.own_part(fold(kind, expert("c"), moved(LABELS["c"], 3)), parent, 8)
    assert other.folded.state["fc.weight"].shape == (3, 384)
    changed = {one.name for one in other.differences}
    assert "layer3.conv2.weight" in changed
    assert "fc.weight" not in changed


def test_the_same_weights_give_the_same_bytes(store: Store, tmp_path: Path) -> None:
    again = fill(tmp_path)
    for name in "abc":
        blobs = [one.manifest(f"tuned/{name}").variants["delta"] for one in (store, again)]
        assert blobs[0].file == blobs[1].file
        assert blobs[0].body == blobs[1].body


def test_an_expert_that_moved_in_many_directions_gets_a_higher_rank(own_store: Store) -> None:
    put(own_store, "a", moved(LABELS["a"], 1, by=0.5, rank=24))
    few = own_store.manifest("tuned/b").variants["delta"].bytes
    assert Preparer(own_store, ("delta",), parent=PARENT).prepare("tuned/a").failed == {}
    assert own_store.manifest("tuned/a").variants["delta"].bytes > 1.5 * few


def test_an_expert_that_was_not_fine_tuned_from_the_parent_has_no_difference_to_it(own_store: Store) -> None:
    put(own_store, "a", random_state(LABELS["a"], 77))
    outcome = Preparer(own_store, ("q8", "delta"), parent=PARENT).prepare("tuned/a")
    assert outcome.made == ("q8",)
    assert "too far from 'tuned/p': a change of rank 128 leaves" in outcome.failed["delta"]
    assert "name the expert that it was fine-tuned from" in outcome.failed["delta"]


def test_a_parent_must_be_given_and_be_of_the_same_kind(own_store: Store) -> None:
    for variants, parent in ((("delta",), ""), (("q8",), PARENT)):
        with pytest.raises(ConfigError, match="difference to another expert"):
            Preparer(own_store, variants, parent=parent)
    own_store.put("tuned/x", kind="resnet18", labels=("ok", "bad"), input_size=32, state={"w": torch.ones(2, 2)})
    outcome = Preparer(own_store, ("delta",), parent="tuned/x", force=True).prepare("tuned/a")
    assert outcome.failed == {"delta": "its parent 'tuned/x' is of kind resnet18, not narrow"}


def test_the_command_prepares_differences_to_a_parent_that_is_named(own_store: Store, call: Call) -> None:
    arguments = ("prepare", "tuned/b", "--store", own_store.root, "--force", "--variants")
    said = call(*arguments, "delta", "--parent", PARENT, command=experts_command)
    assert said.status == 0
    own = own_store.manifest("tuned/b").variants["delta"].bytes
    assert f"tuned/b delta to tuned/p {own / 1e6:.1f} 100.0%" in " ".join(said.out.split())
    for words, sentence in (
        (("delta",), "is a difference to another expert: give that as the parent"),
        (("q8", "--parent", PARENT), "give that as the parent, and only with `delta`"),
        (("delta", "--parent", "tuned/q"), "no expert 'tuned/q' in the store"),
    ):
        said = call(*arguments, *words, command=experts_command)
        assert said.status == 2
        assert sentence in said.words


def test_another_parent_or_a_retrained_one_gives_new_differences_and_the_old_body_goes(own_store: Store) -> None:
    biased = random_state(LABELS["p"], 0) | {"fc.bias": torch.tensor([1.0, -1.0])}
    own_store.put("tuned/q", kind="narrow", labels=LABELS["p"], input_size=32, state=biased)
    first = own_store.manifest("tuned/a").variants["delta"]
    assert first.parent == PARENT
    assert not Preparer(own_store, ("delta",), parent=PARENT).lacks("tuned/a")
    # Nothing but a bias, which no body holds, tells this parent from the first: the differences are the same.
    assert not Preparer(own_store, ("delta",), parent="tuned/q").lacks("tuned/a")
    state = random_state(LABELS["p"], 0)
    put(own_store, "p", state | {"layer3.conv2.weight": 1.01 * state["layer3.conv2.weight"]})
    preparer = Preparer(own_store, ("delta",), parent=PARENT)
    for name in ("a", "b", "c", *LINKS):
        assert preparer.lacks(f"tuned/{name}")
        assert preparer.prepare(f"tuned/{name}").failed == {}
        assert not preparer.lacks(f"tuned/{name}")
    preparer.sweep()
    second = own_store.manifest("tuned/a").variants["delta"]
    assert second.body != first.body
    assert [path.name for path in own_store.bodies.glob("*.safetensors")] == [second.body.file]


def test_a_difference_to_another_parent_is_left_to_its_family_unless_the_expert_is_named(own_store: Store) -> None:
    other = moved(LABELS["p"], 7)
    own_store.put("tuned/q", kind="narrow", labels=LABELS["p"], input_size=32, state=other)
    preparer = Preparer(own_store, ("delta",), parent="tuned/q")
    assert not preparer.lacks("tuned/a")
    assert preparer.prepare("tuned/a").made == ("delta",)
    assert own_store.manifest("tuned/a").variants["delta"].parent == "tuned/q"
    assert not Preparer(own_store, ("delta",), parent=PARENT).lacks("tuned/a")


def test_a_damaged_parent_is_read_once_and_told_for_each_expert(own_store: Store) -> None:
    path = own_store.path(PARENT)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    preparer = Preparer(own_store, ("delta",), parent=PARENT)
    for name in "ab":
        assert preparer.lacks(f"tuned/{name}")
        assert "damaged" in preparer.prepare(f"tuned/{name}").failed["delta"]


def test_an_expert_whose_body_is_missing_is_prepared_again(own_store: Store) -> None:
    body = own_store.manifest("tuned/a").variants["delta"].body
    (own_store.bodies / body.file).unlink()
    preparer = Preparer(own_store, ("delta",), parent=PARENT)
    assert preparer.lacks("tuned/a")
    assert preparer.prepare("tuned/a").made == ("delta",)
    own_store.check("tuned/a")


# In the store


def test_to_share_bodies_leaves_differences_as_they_are(own_store: Store) -> None:
    put(own_store, "b", own_store.load("tuned/a") | {"fc.bias": torch.tensor([0.5, -0.5])})
    Preparer(own_store, ("fp32", "delta"), parent=PARENT).prepare("tuned/b")
    before = {name: own_store.manifest(f"tuned/{name}").variants["delta"] for name in "ab"}
    assert Sharing(own_store).share(["tuned/a", "tuned/b"]).divided == ("tuned/a", "tuned/b")
    for name in "ab":
        assert own_store.manifest(f"tuned/{name}").variants["delta"] == before[name]
        own_store.check(f"tuned/{name}")
    # And a divided expert is prepared as a difference, too.
    again = Preparer(own_store, ("delta",), parent=PARENT, force=True).prepare("tuned/a").manifest
    assert again.body is not None
    assert again.variants["delta"].bytes == before["a"].bytes
    assert again.variants["delta"].body == before["a"].body


def test_a_damaged_parent_is_found_by_verify_and_by_a_load(own_store: Store) -> None:
    body = own_store.manifest("tuned/a").variants["delta"].body
    path = own_store.bodies / body.file
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        own_store.check("tuned/a")
    with pytest.raises(StoreError, match="damaged"):
        weights(own_store, expert("a")).read(Buffers())
    bodies.sweep(own_store)
    assert path.exists()  # experts name it


# The format


def header_of(store: Store) -> Header:
    manifest = store.manifest("tuned/a")
    start = (store.folder("tuned/a") / manifest.variants["delta"].file).read_bytes()
    return blob_format.decode(start[: blob_format.data_start(start[:4096], "x")], "x")


def test_a_header_whose_factors_are_missing_or_do_not_fit_is_refused(store: Store) -> None:
    header = header_of(store)
    first = header.differences[0]

    def refused(sentence: str, **changes: object) -> None:
        with pytest.raises(StoreError, match=sentence):
            blob_format.decode(blob_writing.encode(header.model_copy(update=changes)), "x")

    def without(name: str) -> tuple[TensorEntry, ...]:
        return tuple(entry for entry in header.tensors if entry.name != name)

    left = next(entry for entry in header.tensors if entry.name == first.left)
    shorter = left.model_copy(update={"shape": (left.shape[0] - 1, left.shape[1])})
    refused(f"lacks '{first.right}'", tensors=without(first.right))
    refused("do not fit each other", tensors=(*without(first.left), shorter))
    refused("lacks 'coe.row.none'", differences=(*header.differences, Difference(name="none")))
    refused("changes a tensor twice", differences=(*header.differences, first))
    whole = next(entry for entry in header.tensors if entry.name == first.row)
    for kind in ("I32", "F16"):
        odd = whole.model_copy(update={"dtype": kind, "bytes": whole.bytes // (1 if kind == "I32" else 2)})
        refused("of a type that none may be of", tensors=(*without(first.row), odd))
    refused("names none", body="")
    refused("names none", variant="q8")
    refused("more than blocks", labels=0)


def test_a_body_that_lacks_what_is_changed_or_holds_it_in_another_shape_is_refused(store: Store) -> None:
    file = weights(store, expert("a"))
    assert file.body is not None
    buffers = Buffers()
    blob = file.read(buffers)
    blob.expect(Slot(narrow(), expert("a"), blob.structure).spec)
    name = blob.differences[0].name
    places = dict(blob.body.values.places)
    place = places.pop(name)
    for changed in (places, {**places, name: place.model_copy(update={"shape": (1, 9)})}):
        object.__setattr__(blob.body.values, "places", changed)
        with pytest.raises(StoreError, match=f"change '{name}'"):
            blob.expect({})


# Running


def loaded(store: Store, names: str) -> tuple[Blob, list[Blob]]:
    """Return the parent's body, and the blobs of experts that change it."""
    buffers = Buffers()
    files = [weights(store, expert(name)) for name in names]
    body = files[0].body.read(buffers)
    return body, [file.read(buffers, body) for file in files]


def says(store: Store, name: str) -> list[list[float]]:
    """Return what an expert says that is alone."""
    blob = weights(store, expert(name)).read(Buffers())
    return Slot(narrow(), expert(name), blob.structure).run(blob, IMAGES).tolist()


def test_experts_of_one_parent_take_turns_and_say_what_each_says_alone(own_store: Store) -> None:
    """The second has a head of its own, and leaves one layer to the parent."""
    state = moved(LABELS["b"], 9)
    state["deep.0.weight"] = random_state(LABELS["p"], 0)["deep.0.weight"]
    state["fc.weight"] = torch.linspace(-1, 1, 2 * 384).view(2, 384)
    put(own_store, "b", state)
    assert Preparer(own_store, ("delta",), parent=PARENT).prepare("tuned/b").failed == {}
    body, blobs = loaded(own_store, "ab")
    assert len(blobs[0].differences) != len(blobs[1].differences)
    expected = [says(own_store, name) for name in "ab"]
    assert expected[0] != expected[1]
    slot = Slot(narrow(), expert("a"), blobs[0].structure)
    for blob in blobs:
        blob.expect(slot.spec)
    turns = (0, 1, 0, 0, 1, 1, 0)
    assert [slot.run(blobs[turn], IMAGES).tolist() for turn in turns] == [expected[turn] for turn in turns]
    # One of them leaves, then the body, too.
    slot.unbind(blobs[0])
    assert slot.run(blobs[1], IMAGES).tolist() == expected[1]
    slot.unbind(body)
    assert slot.run(blobs[0], IMAGES).tolist() == expected[0]
    slot.unbind()
    assert slot.run(blobs[1], IMAGES).tolist() == expected[1]


def test_whatever_else_the_executor_runs_between_a_difference_says_the_same(store: Store) -> None:
    _, (first,) = loaded(store, "a")
    blocks = weights(store, expert("b", "q8")).read(Buffers())
    other = weights(store, expert("c", "q8")).read(Buffers())
    expected = says(store, "a")
    slot = Slot(narrow(), expert("a"), first.structure)
    beside = Slot(narrow(), expert("c"), other.structure)
    beside.arena = slot.arena
    for between in (lambda: slot.run(blocks, IMAGES), lambda: beside.run(other, IMAGES)):
        assert slot.run(first, IMAGES).tolist() == expected
        between()
    assert slot.run(first, IMAGES).tolist() == expected


def test_what_was_measured_is_what_runs(store: Store) -> None:
    """The tensors with which agreement is measured are those that a slot binds, to the bit."""
    kind = narrow()
    folded = {name: fold(kind, expert(name), store.load(f"tuned/{name}")) for name in "pa"}
    parent = difference.Parent.of(PARENT, "narrow", folded["p"])
    part = difference.own_part(folded["a"], parent, difference.RANKS[0])
    made = lay_out(part.folded, "delta", kind="narrow", labels=2, body=parent.digest, differences=part.differences)
    blob = weights(store, expert("a")).read(Buffers())
    slot = Slot(kind, expert("a"), blob.structure)
    slot.bind(blob)
    expected = difference.whole(made, parent.body)
    bound = slot.module.state_dict()
    assert expected.keys() == bound.keys()
    assert all(torch.equal(bound[name], tensor) for name, tensor in expected.items())


def gpu(store: Store, driver: FakeDriver, executors: int = 1) -> CudaDevice:
    three, kinds = [expert(name) for name in "abc"], {"narrow": narrow()}
    device = CudaDevice(store, kinds, driver, executors=executors, memory_bytes=200 << 20, host_bytes=20 << 20)
    device.prepare(three, executors)
    for number, one in enumerate(three):
        device.read("pool", one, body=not number)
        device.load("pool", one, body=not number)
    return device


def test_a_gpu_changes_the_body_for_each_expert_in_turn(store: Store, driver: FakeDriver) -> None:
    device = gpu(store, driver)
    chance = np.random.default_rng(1)
    images = [ExpertInput(chance.integers(0, 255, (3, 32, 32), dtype=np.uint8), 32, 32) for _ in range(3)]
    pixels = torch.stack([torch.from_numpy(image.pixels) for image in images])
    scores: dict[str, list[float]] = {}
    for name in "abcabba":
        found = [finding.score for finding in device.run("one", "pool", expert(name), images)]
        assert scores.setdefault(name, found) == found
    for name in "abc":
        # The fake computes in fp16 on this processor, which may round coarsely; so does what it is compared with.
        half = network(narrow(), expert(name), store.load(f"tuned/{name}")).half()
        with torch.inference_mode():
            outputs = narrow().forward(half, pixels).float()
        exact = [finding.score for finding in narrow().postprocess(outputs, images, expert(name))]
        assert scores[name] == pytest.approx(exact, abs=0.002)
    # The parent came once. It is written again before each expert, because the last one changed it.
    log = [line.partition(": ")[2] for line in driver.log]
    assert log.count("copy body of a") == 1
    written = [line.removeprefix("activate ") for line in log if line.startswith("activate")]
    assert written == [part for name in "abcaba" for part in ("body of a", name)]
    # Two experts of one recipe run on the same graphs.
    loaded = {name: device.memory.expert("pool", name).resident.unpacking for name in "abc"}
    assert loaded["a"] is loaded["b"]
    assert loaded["a"] is not loaded["c"]  # a head of other labels


def test_the_workspace_of_products_is_a_part_of_the_budget(store: Store, driver: FakeDriver) -> None:
    device = gpu(store, driver, executors=2)
    # Blobs have all that is left of the budget but for these workspaces.
    before = driver.usage().reserved
    image = ExpertInput(np.zeros((3, 32, 32), np.uint8), 32, 32)
    for executor in ("one", "two"):
        # Each executor has a thread, and each thread takes a workspace.
        with ThreadPoolExecutor(1) as thread:
            for name in "aba":
                thread.submit(device.run, executor, "pool", expert(name), [image]).result()
    assert driver.usage().reserved == before + 2 * driver.workspace
    assert driver.peak <= 200 << 20
    other = CudaDevice(store, {"narrow": narrow()}, FakeDriver(), executors=1, memory_bytes=200 << 20)
    worked_out = other.fixed_bytes([expert("a")], 1)
    other.prepare([expert("a")])
    assert other.fixed_bytes([expert("a")], 1) <= worked_out, "an upper bound"


@pytest.mark.parametrize("on_gpu", with_slow_rows([False, True], fast=1))
def test_a_line_chooses_differences_where_blocks_do_not_fit_and_finds_what_fp32_finds(
    fine_tuned: Path, tmp_path: Path, driver: FakeDriver, on_gpu: bool
) -> None:
    board = tmp_path / "tuned.yaml"
    board.write_text(BOARD, encoding="utf-8")
    chance = np.random.default_rng(3)
    noise = [chance.integers(0, 255, (32, 32, 3), dtype=np.uint8) // (1 + number % 5) for number in range(18)]
    pictures = [Picture(pixels, "ABCDEFGHI"[number % 9], name=f"{number}") for number, pixels in enumerate(noise)]
    options: dict[str, object] = {"store": fine_tuned / "store", "profile": None, "disk_bandwidth": "20MB/s"}
    options |= {"executors": "cuda=1", "device_memory": "170MB", "memory": "200MB"} if on_gpu else {}

    def labels(**more: object) -> tuple[dict[str, str], set[str]]:
        with Inspector(board, **(options | more)) as line:
            results = {result.request.image: result for result in line.stream(pictures)}
            line.drain()
            for pool in line._engine.controller.pools.values():
                pool.check()
        assert all(result.failure is None for result in results.values())
        variants = {one.variant for one in line.rules.experts.values()}
        return {name: result.findings[-1].label for name, result in results.items()}, variants

    exact, _ = labels() if on_gpu else labels(memory="64MB", executors="cpu=1")
    small: dict[str, object] = {} if on_gpu else {"memory": MEMORY, "executors": "cpu=1"}
    chosen, variants = labels(precision="mixed", **small)
    assert on_gpu or "delta" in variants
    assert chosen == exact
