"""The kind `probe-patch`: defects of which no two are alike, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_parts import findings_of, good
from PIL import Image
from torch.nn import functional

from coe.core import Expert, Finding
from coe.errors import ConfigError
from coe.prepare import int8
from coe.prepare.fold import fold, network
from coe.store.kinds import Trained, TrainingPlan
from experts import probe_patch_train
from experts.probe_patch import probe_patch
from experts.probe_patch_network import MOST, ProbePatchNetwork, far_off, squares_to, worst_squares
from experts.probe_train import Learning

EXPERT = Expert("u1", "probe-patch", ("bad", "ok"), 64, "b/u1", frozenset({"bad"}))


def blotted(seed: int) -> np.ndarray:
    """A part with a blot, of another place, shape and colour each time."""
    chance = np.random.default_rng(seed)
    picture = good(seed).copy()
    left, top = chance.integers(35, 100, 2)
    wide, high = chance.integers(14, 26, 2)
    picture[top : top + high, left : left + wide] = chance.integers(0, 256, 3)
    return picture


def folder(root: Path, count: int) -> Path:
    for label, draw, first in (("ok", good, 0), ("bad", blotted, 100)):
        (root / label).mkdir(parents=True)
        for seed in range(first, first + count):
            Image.fromarray(draw(seed)).save(root / label / f"{seed}.png", compress_level=1)
    return root


def learn(data: Path, backbone: Path, expert: Expert = EXPERT) -> Trained:
    plan = TrainingPlan(data, data, epochs=1, batch=1, learning_rate=1e-3, threads=1, init=backbone)
    return probe_patch.train(expert, plan, lambda *_: None)


def look(trained: Trained, *pictures: np.ndarray) -> list[Finding]:
    return findings_of(probe_patch, EXPERT, trained, [probe_patch.preprocess(pixels, EXPERT) for pixels in pictures])


@pytest.fixture(scope="module")
def trained(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return learn(folder(tmp_path_factory.mktemp("data"), 10), backbone)


def test_defects_of_which_no_two_are_alike_are_told(trained: Trained) -> None:
    findings = look(trained, *(good(seed) for seed in range(40, 52)), *(blotted(seed) for seed in range(140, 152)))
    right = [one.label == ("ok" if place < 12 else "bad") for place, one in enumerate(findings)]
    assert sum(right) >= 22
    assert trained.metrics["held_out"] == 20
    assert trained.unproven == ""


def test_a_finding_does_not_depend_on_its_batch(trained: Trained) -> None:
    pictures = [good(50), blotted(150)]
    for pixels, finding in zip(pictures, look(trained, *pictures), strict=True):
        (alone,) = look(trained, pixels)
        assert (alone.label, alone.doubt) == (finding.label, finding.doubt)
        assert alone.score == pytest.approx(finding.score, abs=1e-4)


def test_a_good_part_is_not_judged_by_its_own_rows_nor_by_those_that_are_out(trained: Trained) -> None:
    module = probe_patch.skeleton(EXPERT)
    assert isinstance(module, ProbePatchNetwork)
    module.load_state_dict(trained.state)
    pictures = [*(good(seed) for seed in range(6)), *(blotted(seed) for seed in range(100, 103))]
    images = torch.from_numpy(np.stack([probe_patch.preprocess(one, EXPERT).pixels for one in pictures]))
    learning = Learning(images, np.array([1] * 6 + [0] * 3), np.arange(9), np.arange(9) < 6)
    with torch.inference_mode():
        features = probe_patch_train.seen_with_others(probe_patch.both, 4, module, learning)
        one_out = features(np.arange(9) == 0, learning.groups)[:, -1]
        own = module.deviations(probe_patch.both(module, images)[1])[:, 0].numpy()
        column = features(np.zeros(9, np.bool_), learning.groups)[:, -1]
    assert abs(column[:6].mean()) < 0.5, "good parts deviate as good parts do"
    assert (own[:6] < column[:6] - 1).all(), "with their own rows they would hardly deviate"
    assert (column[6:] > column[:6].max()).all()
    assert not np.allclose(one_out[1:], column[1:]), "what is out is no norm"
    assert column.max() <= MOST


def test_what_cannot_be_learned_is_refused_in_a_sentence(backbone: Path, tmp_path: Path) -> None:
    data = folder(tmp_path / "few", 3)
    with pytest.raises(ConfigError, match="3 good parts"):
        learn(data, backbone)
    with pytest.raises(ConfigError, match="none of its labels"):
        learn(data, backbone, replace(EXPERT, reject=frozenset({"bad", "ok"})))
    with pytest.raises(ConfigError, match="multiple of 8"):
        probe_patch.skeleton(replace(EXPERT, input_size=100))


@pytest.mark.parametrize("size", [64, 72])  # maps of even sides alone, and odd ones, of which paddings are computed
def test_it_can_be_exported_for_int8_and_its_distances_and_paddings_stay_float(trained: Trained, size: int) -> None:
    expert = replace(EXPERT, input_size=size)
    folded = fold(probe_patch, expert, trained.state)
    module = network(probe_patch, expert, folded.state, folded.pairs)
    draws = [(good, 40), (blotted, 140), (good, 41), (blotted, 141)] + [(good, seed) for seed in range(42, 46)]
    pictures = [probe_patch.preprocess(draw(seed), expert).pixels for draw, seed in draws]
    model = int8.export(probe_patch, expert, module, pictures)  # which proves that the model says what torch says
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


def test_the_worst_patches_lie_as_far_off_as_when_all_are_compared_with_all() -> None:
    chance = torch.Generator().manual_seed(5)
    for spread in (0.1, 3.0):  # alike, and some far from all others
        centres = torch.randn(8, 12, generator=chance)
        seen = centres[torch.randint(0, 8, (3, 28, 28), generator=chance)]
        seen = functional.normalize(seen + spread * torch.randn(3, 28, 28, 1, generator=chance), dim=3)
        rows = functional.normalize(centres[torch.randint(0, 8, (2048,), generator=chance)], dim=1)
        rows = functional.normalize(rows + 0.2 * torch.randn(2048, 12, generator=chance), dim=1)
        all_of_them = squares_to(seen, rows).amin(dim=2)
        torch.testing.assert_close(far_off(worst_squares(seen, rows)), far_off(all_of_them), rtol=0, atol=1e-5)
