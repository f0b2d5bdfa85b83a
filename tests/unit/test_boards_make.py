from functools import cache
from pathlib import Path

import pytest
import yaml

from apps.boards.catalogue import DETECTORS
from apps.boards.make import board_file, main

SEEDS = {"A": 1, "B": 2}
RULES = Path(__file__).parents[2] / "routing_rules"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def board_of(letter):
    """Return the content of a board's file; do not change it."""
    board = yaml.load(board_file(letter, SEEDS[letter]), Loader=LOADER)
    return board


@pytest.fixture(params=sorted(SEEDS))
def letter(request):
    return request.param


def test_the_committed_file_is_what_the_script_makes_and_another_seed_another(letter, tmp_path):
    out = tmp_path / "board.yaml"
    main(["--board", letter, "--seed", str(SEEDS[letter]), "--out", str(out)])
    assert out.read_text() == (RULES / f"board_{letter.lower()}.yaml").read_text()
    assert board_file(letter, 8) != board_file(letter, 9)


def test_each_type_has_a_classifier_of_its_own_and_a_third_go_on_to_shared_detectors(letter):
    board = board_of(letter)
    experts, components = board["experts"], board["components"]
    classifiers = [part["inspect"] for part in components.values()]
    assert len(set(classifiers)) == len(classifiers)
    assert all(experts[name]["kind"] == "resnet101" for name in classifiers)
    chained = [part["then"]["ok"] for part in components.values() if "then" in part]
    assert 0.30 <= len(chained) / len(components) <= 0.40
    uses = [name for then in chained for name in (then if isinstance(then, list) else [then])]
    detectors = {name for name, expert in experts.items() if expert["kind"] in {"yolov5m", "yolov5l"}}
    assert set(uses) == detectors <= set(DETECTORS)
    assert all(uses.count(name) >= 2 for name in detectors)
    assert {experts[name]["kind"] for name in detectors} == {"yolov5m", "yolov5l"}


def test_counts_have_a_long_tail_and_board_sizes_are_those_of_the_paper(letter):
    components = board_of(letter)["components"]
    counts = [part["count"] for part in components.values()]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts[:35]) > sum(counts) / 2
    assert counts.count(1) > len(counts) / 4
    assert all(name.startswith(("R", "C")) for name in list(components)[:10])
    boards = {letter: board_of(letter) for letter in SEEDS}
    assert {letter: len(board["components"]) for letter, board in boards.items()} == {"A": 352, "B": 342}
    assert len(boards["A"]["experts"]) == 372
