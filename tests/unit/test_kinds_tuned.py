"""Networks that are tuned here: what they keep of their good parts, and what they say of what nobody taught."""

from dataclasses import replace

import numpy as np
import picture_folders
import pytest
import torch
from golden_parts import bad, good, moved, noisy, part
from safetensors.torch import save_file

from coe.core import Expert, Shown
from coe.learn import learning
from coe.store.blob_format import optional_of
from coe.store.kinds import TrainingPlan
from coe.store.skeletons import random_weights, skeleton
from coe.store.store import Store
from coe.variants import int8
from coe.variants.fold import fold, network
from experts.efficientnet import efficientnet_lite0
from experts.resnet import resnet18, resnet50

EXPERT = Expert("u1", "efficientnet-lite0", ("bad", "ok"), 64, "b/u1", frozenset({"bad"}))
FROZEN = efficientnet_lite0.early_layers


def holed(seed):
    return moved(bad(noisy(part(), seed)), float(seed % 3), float(-seed % 4))


def folder(root, count=12, wrong=0):
    """Pictures of good parts, of which the last are bad, and of bad ones."""
    among = [holed(seed) for seed in range(300, 300 + wrong)]
    picture_folders.saved(root / "ok", *(good(seed) for seed in range(count - wrong)), *among)
    picture_folders.saved(root / "bad", *(holed(seed) for seed in range(100, 100 + count)))
    return root


def learn(data, init, expert=EXPERT, **more):
    plan = TrainingPlan(data, data, epochs=4, batch=8, learning_rate=2e-3, threads=1, init=init, held_out=0.0)
    return efficientnet_lite0.train(expert, replace(plan, **more), lambda *_: None)


def said(module, pictures, expert=EXPERT):
    prepared = [efficientnet_lite0.preprocess(pixels, expert) for pixels in pictures]
    with torch.inference_mode():
        outputs = efficientnet_lite0.forward(module, torch.from_numpy(np.stack([one.pixels for one in prepared])))
    return efficientnet_lite0.postprocess(outputs, prepared, expert)


def look(trained, *pictures, expert=EXPERT):
    return said(network(efficientnet_lite0, expert, trained.state), pictures, expert)


def by_head_alone(trained):
    return {name: one for name, one in trained.state.items() if "optional" not in name}


def passes(finding):
    return finding.label == "ok" and not finding.doubt


@pytest.fixture(scope="module")
def trained(backbone, tmp_path_factory):
    return learn(folder(tmp_path_factory.mktemp("data")), backbone, freeze=FROZEN)


UNLIKE = [part(7), np.full((160, 160, 3), 200, np.uint8), np.zeros((160, 160, 3), np.uint8), good(3)[::-1, ::-1]]
"""What nobody taught: other parts, nothing, and a part that is turned."""


def test_nothing_that_looks_unlike_all_good_parts_is_good(trained):
    near = look(trained, *(good(seed) for seed in range(40, 48)))
    assert sum(map(passes, near)) >= 5
    assert sum(bool(one.doubt) for one in near) <= 1
    assert not any(passes(one) for one in look(trained, *(holed(seed) for seed in range(140, 148))))
    unlike = look(trained, *UNLIKE)
    assert not any(map(passes, unlike))
    assert all(one.heat is not None and one.likeness is not None for one in unlike)
    assert trained.metrics["in_doubt"] <= 0.1
    assert any(map(passes, look(replace(trained, state=by_head_alone(trained)), *UNLIKE)))


def test_it_takes_the_exam(trained, backbone, tmp_path):
    assert {item.item: (item.shown, item.passed) for item in trained.exam.items} == {
        Shown.MISSING: (12, 0),
        Shown.TURNED: (12, 0),
    }
    of_turned = learn(folder(tmp_path), backbone, freeze=FROZEN, turned=True)
    assert Shown.TURNED not in {item.item for item in of_turned.exam.items}, "it learned that parts may lie so"


@pytest.mark.slow
def test_bad_pictures_among_the_good_are_left_out_and_named(backbone, tmp_path):
    trained = learn(folder(tmp_path, 20, wrong=2), backbone, freeze=FROZEN)
    assert set(trained.exam.left_out) == {"ok/18.png", "ok/19.png"}
    assert not any(map(passes, look(trained, *(holed(seed) for seed in range(140, 146)))))


def test_without_a_good_label_what_is_unlike_all_pictures_is_in_doubt(backbone, tmp_path):
    picture_folders.saved(tmp_path / "left", *(good(seed) for seed in range(10)))
    picture_folders.saved(tmp_path / "right", *(holed(seed) for seed in range(100, 110)))
    sides = replace(EXPERT, labels=("left", "right"), reject=frozenset())
    trained = learn(tmp_path, backbone, sides, freeze=FROZEN)
    assert trained.exam is None
    found = look(trained, good(50), holed(150), *UNLIKE[1:3], expert=sides)
    assert [bool(one.doubt) for one in found] == [False, False, True, True]


@pytest.mark.parametrize(("count", "size"), [(4, 64), (8, 60)])
def test_where_no_distances_can_be_kept_it_is_said(backbone, tmp_path, count, size):
    trained = learn(folder(tmp_path, count), backbone, replace(EXPERT, input_size=size), epochs=1)
    assert not optional_of(trained.state)
    assert any("keeps no distances" in remark for remark in trained.remarks)


@pytest.mark.parametrize("kind", [resnet18, resnet50, efficientnet_lite0])
def test_an_expert_without_distances_says_the_same_as_one_with_them(kind):
    expert = replace(EXPERT, kind=kind.name)
    state = random_weights(kind, expert, 0)
    assert not optional_of(state), "random weights know no good parts"
    plain, with_parts = skeleton(kind, expert, optional=()), skeleton(kind, expert)
    plain.load_state_dict(state)
    with_parts.load_state_dict(state, strict=False)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(kind.forward(with_parts, images)["logits"], kind.forward(plain, images))


def test_weights_are_imported_with_distances_and_without(trained, backbone, tmp_path):
    for state in (trained.state, by_head_alone(trained)):
        save_file(state, tmp_path / "x.safetensors")
        assert efficientnet_lite0.convert(dict(state), EXPERT).keys() == state.keys()
    again = learn(folder(tmp_path / "data"), tmp_path / "x.safetensors", epochs=1)
    assert optional_of(again.state)


def test_it_shares_what_was_frozen_and_keeps_its_own_distances(trained, tmp_path):
    store = Store(tmp_path)
    manifest = learning.put(store, EXPERT, replace(trained, frozen=FROZEN), None, "test")
    assert manifest.body is not None
    assert manifest.exam == trained.exam
    loaded = store.load("b/u1")
    assert {name for name in loaded if name.startswith("optional.")}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in trained.state.items())


def test_folded_and_in_half_precision_it_says_the_same(trained):
    folded = fold(efficientnet_lite0, EXPERT, trained.state)
    assert folded.pairs
    expected = look(trained, good(40), holed(140), *UNLIKE)
    for dtype in (torch.float16, torch.float32):
        module = network(efficientnet_lite0, EXPERT, folded.state, folded.pairs, dtype)
        found = said(module, [good(40), holed(140), *UNLIKE])
        assert [(one.label, one.doubt) for one in found] == [(one.label, one.doubt) for one in expected]


@pytest.mark.slow
def test_in_int8_its_distances_stay_float(trained):
    folded = fold(efficientnet_lite0, EXPERT, trained.state)
    module = network(efficientnet_lite0, EXPERT, folded.state, folded.pairs)
    pictures = [
        efficientnet_lite0.preprocess(pixels, EXPERT).pixels
        for pixels in [*(good(seed) for seed in range(40, 46)), *(holed(seed) for seed in range(140, 146))]
    ]
    model = int8.export(efficientnet_lite0, EXPERT, module, pictures)  # which proves that it says what torch says
    graph = int8.Quantiser(model, pictures).quantised().graph
    products = {name for node in graph.node if node.op_type == "Gemm" for name in node.output}
    assert products
    assert not [node for node in graph.node if node.op_type == "QuantizeLinear" and products & set(node.input)]
