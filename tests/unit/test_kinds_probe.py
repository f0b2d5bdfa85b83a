"""The kind `probe`: what it learns from a few pictures, what it has never seen, and what it refuses."""

from dataclasses import replace

import numpy as np
import picture_folders
import pytest
import torch
from golden_parts import bad, findings_of, good, moved, noisy, part
from PIL import Image
from safetensors.torch import save_file
from tables import with_slow_rows
from trainings import plan, silent

from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.learn import backbones
from coe.store import kinds
from coe.store.exam import NO_EXAM
from coe.store.store import Store
from coe.variants import int8
from coe.variants.fold import fold, network
from experts.beside_good import turned
from experts.logistic import LinearHead, calibrated, judged_by_others
from experts.probe import probe

EXPERT = Expert("u1", "probe", ("bad", "ok"), 64, "b/u1", frozenset({"bad"}))


def holed(seed):
    return moved(bad(noisy(part(), seed)), float(seed % 3), float(-seed % 4))


def saved(root, label, *drawn):
    picture_folders.saved(root / label, *drawn)
    return root


def folder(root, count=10, first=0):
    saved(root, "ok", *(good(seed) for seed in range(first, first + count)))
    return saved(root, "bad", *(holed(seed) for seed in range(first + 100, first + 100 + count)))


def learn(data, init, expert=EXPERT, **more):
    return probe.train(expert, plan(data, init=init, **more), silent)


def look(trained, *pictures):
    return findings_of(probe, EXPERT, trained, [probe.preprocess(pixels, EXPERT) for pixels in pictures])


@pytest.fixture(scope="module")
def trained(backbone, tmp_path_factory):
    return learn(folder(tmp_path_factory.mktemp("data")), backbone)


def test_ten_pictures_of_each_label_teach_what_tells_them_apart_judged_by_heads_without_them(trained):
    findings = look(trained, *(good(seed) for seed in range(40, 48)), *(holed(seed) for seed in range(140, 148)))
    assert [one.label for one in findings] == ["ok"] * 8 + ["bad"] * 8
    assert sum(bool(one.doubt) for one in findings) <= 1
    assert not any(one.doubt for one in findings[8:]), "bad parts are unlike good ones"
    assert all(0 < one.margin <= 1 for one in findings if not one.doubt)
    assert trained.metrics["held_out"] == 20
    assert trained.metrics["accuracy"] > 0.9
    assert trained.metrics["accuracy_at_least"] < trained.metrics["accuracy"]
    assert (trained.unproven, trained.remarks) == ("", ())


def test_nothing_that_looks_unlike_all_good_parts_is_good_whatever_its_batch(trained):
    unlike = [part(7), np.full((160, 160, 3), 200, np.uint8), np.zeros((160, 160, 3), np.uint8)]
    assert all(one.doubt or one.label == "bad" for one in look(trained, *unlike))
    pictures = [good(50), holed(51), part(7)]
    for pixels, finding in zip(pictures, look(trained, *pictures), strict=True):
        (alone,) = look(trained, pixels)
        assert (alone.label, alone.doubt) == (finding.label, finding.doubt)
        assert alone.score == pytest.approx(finding.score, abs=1e-4)


def test_in_a_lesser_variant_what_is_nearly_unlike_all_is_in_doubt_and_no_numbers_give_no_finding():
    prepared = [probe.preprocess(part(), EXPERT)] * 3
    outputs = outputs_of([[0.0, 3.0]] * 3, [0.2, 0.45, 0.6])
    full = probe.postprocess(outputs, prepared, EXPERT)
    assert [bool(one.doubt) for one in full] == [False, False, True]
    rounded = probe.postprocess(outputs, prepared, replace(EXPERT, variant="int8"))
    assert [bool(one.doubt) for one in rounded] == [False, True, True]
    assert rounded[0].margin > 0.8
    assert [one.margin for one in rounded[1:]] == [0, 0]
    with pytest.raises(StoreError):
        probe.postprocess(outputs_of([[np.nan, 0.0]], [0.0]), prepared[:1], EXPERT)


def outputs_of(logits, unlike):
    count = len(logits)
    return {
        "logits": torch.tensor(logits),
        "score": torch.zeros(count),
        "unlike": torch.tensor(unlike),
        "scores": torch.zeros(count, 28, 28),
        "shown": torch.zeros(count, 24, 24, 3, dtype=torch.uint8),
    }


def test_held_out_pictures_of_all_labels_are_measured_if_the_folder_has_them(backbone, tmp_path):
    grey = np.full((160, 160, 3), 90, np.uint8)
    for name, count, first in (("train", 10, 0), ("val", 4, 60)):
        seeds = range(first, first + count)
        data = saved(folder(tmp_path / name, count, first), "gone", *(noisy(grey, seed) for seed in seeds))
    metrics = learn(data.parent, backbone, replace(EXPERT, labels=("bad", "gone", "ok"))).metrics
    assert (metrics["held_out"], metrics["accuracy"] > 0.9) == (12, True)


def test_few_pictures_and_copies_are_named(backbone, tmp_path):
    data = folder(tmp_path, 8)
    Image.open(data / "ok/01.png").save(data / "bad/copy.bmp")
    said = " ".join(learn(data, backbone).remarks)
    assert "only 9 pictures of 'bad', 8 pictures of 'ok'" in said
    assert "ok/01.png = bad/copy.bmp" in said or "bad/copy.bmp = ok/01.png" in said


def other(seed):
    picture = np.full((160, 160, 3), (40, 60, 150), np.uint8)
    picture[30:130:12, 20:140] = (240, 220, 40)
    return noisy(picture, seed)


def dotted(seed):
    picture = good(seed)
    picture[60:80, 60:80] = (250, 10, 10)
    return picture


@pytest.mark.parametrize("drawn", with_slow_rows([dotted, other], fast=1))
def test_good_pictures_of_another_part_that_are_many_are_named(backbone, tmp_path, drawn):
    data = folder(tmp_path, 12)
    for number in range(8):
        Image.fromarray(drawn(number)).save(data / "ok" / f"other{number}.png")
    (told,) = [remark for remark in learn(data, backbone).remarks if "another part" in remark]
    assert "ok/other0.png, ok/other1.png, ok/other2.png and 5 more" in told


def wave(along, beside):
    down, across = np.mgrid[:160, :160]
    return np.stack([127 + 120 * np.sin(across * along + down * beside)] * 3, axis=2).astype(np.uint8)


@pytest.mark.slow
def test_series_of_few_parts_are_told_of_each_label_and_do_not_judge_their_own_pictures(backbone, tmp_path):
    parts = [wave(1 / (3 + 2 * number), number / 9) for number in range(5)]
    data = saved(tmp_path, "ok", *(good(seed) for seed in range(8)))
    saved(data, "bad", *(noisy(one, seed) for one in parts for seed in range(3)))
    (told,) = [remark for remark in learn(data, backbone).remarks if "series" in remark]
    assert ("15 pictures of 'bad'" in told, "5 parts" in told) == (True, True)
    for label, first in (("ok", 0), ("bad", 50)):  # nothing but the part itself tells them apart
        parts = [wave(*np.random.default_rng(first + number).uniform(0.02, 0.5, 2)) for number in range(6)]
        saved(tmp_path / "own", label, *(noisy(one, seed) for one in parts for seed in range(3)))
    assert learn(tmp_path / "own", backbone).metrics["accuracy"] < 0.7


def test_what_cannot_be_learned_is_refused_in_a_sentence(backbone, tmp_path):
    once = saved(saved(tmp_path / "once", "ok", *(good(seed) for seed in range(5))), "bad", holed(1))
    for word, init, more in (
        ("one image of 'bad'", backbone, {}),
        ("pretrained", None, {}),
        ("'freeze'", backbone, {"freeze": ("backbone",)}),
    ):
        with pytest.raises(ConfigError, match=word):
            learn(once, init, **more)
    same = saved(tmp_path / "same", "ok", *(good(seed) for seed in range(5)))
    (same / "bad").mkdir()
    for number in (1, 2):
        Image.open(same / f"ok/0{number}.png").save(same / f"bad/{number}.bmp")
    with pytest.raises(ConfigError, match=r"'bad'.*'ok'"):
        learn(same, backbone)
    alike = saved(saved(tmp_path / "alike", "ok", *[good(1)] * 5), "bad", *(holed(seed) for seed in range(5)))
    with pytest.raises(ConfigError, match=r"'ok' \(5\)"):
        learn(alike, backbone)
    with pytest.raises(ConfigError, match="64"):
        probe.skeleton(replace(EXPERT, input_size=16))


def test_grey_pictures_are_learned_and_those_of_16_bits_ask_which_bits_count(backbone, tmp_path):
    data = saved(tmp_path, "ok", *(good(seed).mean(axis=2).astype(np.uint8) for seed in range(4)))
    saved(data, "bad", *(holed(seed).mean(axis=2).astype(np.uint8) for seed in range(4)))
    assert learn(data, backbone).metrics["held_out"] == 8
    Image.fromarray(good(9).mean(axis=2).astype(np.uint16) * 16).save(data / "ok" / "deep.png")
    with pytest.raises(ConfigError, match=r"deep\.png.*bits"):
        learn(data, backbone)
    assert learn(data, backbone, bits=12).metrics["held_out"] == 9


def test_turned_parts_are_learned_turned_and_refused_by_kinds_that_do_not_heed_it(run, tmp_path):
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[:, :, 4:8, 12:20] = 255
    turns = turned(image, 8)
    assert (len(turns), torch.equal(turns[0], image[0])) == (8, True)
    assert torch.equal(turns[4], image[0].flip(1, 2)), "half a turn"
    words = ("--kind", "difference", "--input", "64", "--labels", "strange", "--turned")
    assert "leave --turned out" in run("train", "b/u1", *words, "--data", tmp_path).err


def test_copies_do_not_judge_each_other():
    """Labels by chance: with its copy among what is learned, each picture would be told right."""
    chance = np.random.default_rng(0)
    features, labels = chance.normal(size=(60, 200)), chance.integers(0, 2, 60)
    twice, groups = np.tile(features, (2, 1)), np.tile(np.arange(60), 2)
    logits, _ = judged_by_others(twice, np.tile(labels, 2), groups, 2, seed=0)
    assert (logits.argmax(axis=1) == np.tile(labels, 2)).mean() < 0.7
    temperature, _ = calibrated(logits, np.tile(labels, 2))
    assert temperature > 2, "so its scores say that it does not know"


def test_unseen_pictures_that_lean_to_one_label_are_shifted_back_and_rare_labels_weigh_as_frequent_ones():
    labels = np.array([0] * 40 + [1] * 40)
    margin = np.random.default_rng(0).normal(size=80) + np.where(labels == 1, 4.0, 0.5)
    logits = np.column_stack((-margin, margin))
    temperature, bias = calibrated(logits, labels)
    shifted = (logits / temperature + bias).argmax(axis=1)
    assert (logits.argmax(axis=1) == labels).mean() < 0.8
    assert (shifted == labels).mean() > 0.9
    chance = np.random.default_rng(0)
    labels = np.array([0] * 50 + [1] * 5)
    features = chance.normal(size=(55, 3)) + 2.0 * labels[:, None]
    said = LinearHead.learned(features, labels, 2).logits(np.full((1, 3), 1.0))
    assert abs(float(said[0, 0] - said[0, 1])) < 1, "halfway between the two"


@pytest.fixture
def run(call, tmp_path):
    return lambda *words: call(*words, "--store", tmp_path / "store", command=experts_command)


@pytest.mark.slow
def test_a_classifier_starts_from_the_backbone_of_its_kind_or_says_that_it_has_none(run, tmp_path):
    assert backbones.start_of(Store(tmp_path / "store"), kinds.resolve("resnet18")) is None
    data = folder(tmp_path / "data", 2)
    words = ("train", "b/u1", "--kind", "resnet18", "--input", "64", "--data", data, "--epochs", "1", "--no-prepare")
    said = run(*words)
    assert "from scratch" in said.err
    assert NO_EXAM in " ".join(said.out.split()), "two pictures tell nothing"
    kind = kinds.resolve("resnet18")
    save_file(kind.skeleton(replace(EXPERT, labels=("a",) * 9)).state_dict(), tmp_path / "net.safetensors")
    run("backbone", "add", tmp_path / "net.safetensors", "--kind", "resnet18", "--licence", "mine")
    assert "starts from backbones/resnet18" in run(*words).err
    assert Store(tmp_path / "store").manifest("b/u1").source.endswith("from backbones/resnet18")


@pytest.mark.slow
def test_an_expert_from_the_command_shares_its_backbone(run, tmp_path):
    data, shelf = folder(tmp_path / "data", 5), Store(tmp_path / "store")
    for name in ("b/u1", "b/u2"):
        said = run("train", name, "--kind", "probe", "--input", "64", "--data", data, "--no-prepare")
        assert "taken as good: ok; as bad: bad" in said.err
    first, second = (shelf.manifest(name) for name in ("b/u1", "b/u2"))
    assert first.body is not None
    assert first.body == second.body
    assert first.bytes < 450_000


def blotted(seed):
    """A part with a blot, of another place, shape and colour each time."""
    chance = np.random.default_rng(seed)
    picture = good(seed).copy()
    left, top = chance.integers(35, 100, 2)
    wide, high = chance.integers(14, 26, 2)
    picture[top : top + high, left : left + wide] = chance.integers(0, 256, 3)
    return picture


@pytest.fixture(scope="module")
def blots(backbone, tmp_path_factory):
    data = saved(tmp_path_factory.mktemp("data"), "ok", *(good(seed) for seed in range(10)))
    return learn(saved(data, "bad", *(blotted(seed) for seed in range(100, 110))), backbone)


def test_defects_of_which_no_two_are_alike_are_told_and_shown_where(blots):
    findings = look(blots, *(good(seed) for seed in range(40, 52)), *(blotted(seed) for seed in range(140, 152)))
    passed = [one.label == "ok" and not one.doubt for one in findings]
    assert sum(passed[:12]) >= 9
    assert not any(passed[12:])
    picture = good(61).copy()
    picture[90:110, 40:60] = (250, 240, 20)
    (finding,) = look(blots, picture)
    assert finding.likeness is not None
    places = np.frombuffer(finding.heat.values, np.uint8).reshape(finding.heat.rows, finding.heat.columns)
    row, column = np.unravel_index(places.argmax(), places.shape)
    assert abs((row + 0.5) * 160 / finding.heat.rows - 100) <= 40
    assert abs((column + 0.5) * 160 / finding.heat.columns - 50) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("size", [72, 64])  # maps of odd sides, of which paddings are computed, and of even ones
def test_it_can_be_exported_for_int8_and_its_distances_and_paddings_stay_float(blots, size):
    expert = replace(EXPERT, input_size=size)
    folded = fold(probe, expert, blots.state)
    module = network(probe, expert, folded.state, folded.pairs)
    draws = [(good, 40), (blotted, 140), (good, 41), (blotted, 141)] + [(good, seed) for seed in range(42, 46)]
    pictures = [probe.preprocess(draw(seed), expert).pixels for draw, seed in draws]
    model = int8.export(probe, expert, module, pictures)  # which proves that the model says what torch says
    graph = int8.Quantiser(model, pictures).quantised().graph
    products = {name for node in graph.node if node.op_type == "Gemm" for name in node.output}
    assert products
    assert not [n for n in graph.node if n.op_type == "QuantizeLinear" and products & set(n.input)]
    made, of_sizes = {name for node in graph.node for name in node.output}, dict[str, str]()
    for node in graph.node:
        above = [name for name in node.input if name in made]
        if node.op_type == "Shape" or (above and all(name in of_sizes for name in above)):
            of_sizes |= dict.fromkeys(node.output, node.op_type)
    assert ("Ceil" in of_sizes.values()) == (size == 72)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {*of_sizes.values()}
