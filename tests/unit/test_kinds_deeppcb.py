"""The real data sets, where they are: what their READMEs state is what our readers find."""

from collections import Counter

import pytest

from apps.data_set import DataMissing
from apps.deeppcb import data as deeppcb
from apps.deeppcb.images import write
from coe.board import rules
from coe.pictures.decoding import decode
from coe.pictures.finding import find as find_images

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def folder():
    try:
        return deeppcb.find()
    except DataMissing as error:
        pytest.skip(str(error))


def test_the_defects_are_those_of_the_readme(folder):
    for split, pairs, counts in (
        ("trainval", 1000, (1283, 1028, 1379, 1142, 1010, 1031)),
        ("test", 242, (321, 248, 286, 237, 218, 218)),
    ):
        found = deeppcb.read(folder, split)
        labels = Counter(defect.label for pair in found for defect in pair.defects)
        assert len(found) == pairs
        assert tuple(labels[place] for place in range(6)) == counts


def test_every_group_of_the_test_list_is_a_component_with_all_its_images(folder, tmp_path):
    board = rules.load("deeppcb_golden")
    pairs = deeppcb.read(folder, "test")
    assert {pair.group for pair in pairs} <= set(board.components)
    items, skipped = find_images(write(folder, pairs, tmp_path), board.components)
    assert (len(items), skipped) == (242, [])
    assert not [item.error for item in items if item.error]


def test_a_pair_decodes_to_two_images_of_one_size_and_the_expert_has_the_labels_of_the_data_set(folder):
    pair = deeppcb.read(folder, "test")[0]
    assert decode(pair.tested).shape == decode(pair.template).shape == (640, 640, 3)
    assert rules.load("deeppcb_golden").experts["pcb-golden"].labels == deeppcb.LABELS
    listed = [line.split() for line in (folder / "classes.txt").read_text().split("\n") if line.strip()]
    assert [words[1] for words in listed if words[0] in "123456"] == list(deeppcb.LABELS)
