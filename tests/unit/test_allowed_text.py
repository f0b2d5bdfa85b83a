"""What a board file allows to be read: patterns, characters that are alike, the window."""

import pytest

from coe.board import rules
from coe.errors import RulesError
from coe.helpers.allowed_text import Reading


@pytest.mark.parametrize(
    ("allowed", "fit", "others"),
    [
        ("103", ["103", "10 3"], ["104", "1103"]),
        ("24C64", [], ["24c64"]),
        ("SN######", ["SN004211"], ["SN00421", "SN0O4211"]),
        ("@@##", ["AB12"], ["1B12"]),
        ("K2?17", ["K2417"], []),
        ("24C64*", ["24C64WP"], ["24C6"]),
        (r"A\#1", ["A#1"], ["A11"]),
        ("1.5", [], ["1x5"]),
        ("a*a*a*a*", ["a" * 5000 + "b"], []),
        ("a*a*a*c", [], ["a" * 200]),
    ],
)
def test_patterns(allowed, fit, others):
    reading = Reading(allowed=(allowed,))
    assert [text for text in (*fit, *others) if reading.allows(text)] == fit


@pytest.mark.parametrize(
    ("allowed", "fit", "others"),
    [
        ("AO3T", ["A03T"], []),
        ("A03T", ["AO3T"], ["AQ3T"]),
        ("##", ["1O"], []),
        ("@@", ["8A"], ["1A"]),
        ("#", [], ["I"]),
    ],
)
def test_characters_that_are_alike_count_as_one(allowed, fit, others):
    reading = Reading(allowed=(allowed,), alike=("0O", "8B"))
    assert [text for text in (*fit, *others) if reading.allows(text)] == fit


def test_one_of_several_patterns_is_enough_and_without_any_each_text_is_allowed():
    assert [Reading(allowed=("103", "10K")).allows(text) for text in ("10K", "")] == [True, False]
    assert Reading().allows("anything")


BOARD = """board: b
experts:
  value:
    kind: marking
    labels: [right, wrong]
    input: 96
    reject: [wrong]
    reads: {%s}
components:
  R1: {inspect: value}
"""


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        ("allowed: []", "allowed"),
        ('allowed: [""]', "pattern"),
        (r"allowed: ['A\']", "pattern"),
        ("allowed: ['*1*2*3*4*5']", "pattern"),
        ("allowed: ['103'], window: [0.5, 0.5, 0.6, 0.1]", "window"),
        ("allowed: ['103'], window: [-0.1, 0, 0.6, 0.1]", "window"),
        ("allowed: ['103'], window: [0, 0, 0, 0.1]", "window"),
        ("allowed: ['103'], window: [0, 0, .nan, 0.1]", "window"),
        ("allowed: ['103'], alike: [0]", "'0'"),
        ("allowed: ['103'], alike: [0O, OQ]", "'O'"),
        ("alowed: ['103']", "alowed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path, reads, says):
    path = tmp_path / "b.yaml"
    path.write_text(BOARD % reads)
    with pytest.raises(RulesError) as refusal:
        rules.load(path)
    assert "b.yaml:8:" in str(refusal.value)
    assert says in str(refusal.value)


def test_the_rules_hand_it_to_the_expert(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_text(BOARD % "window: [0.25, 0.4, 0.5, 0.2], allowed: [103, 10K], alike: [0O]")
    reads = rules.load(path).experts["value"].reads
    assert reads == Reading(window=(0.25, 0.4, 0.5, 0.2), allowed=("103", "10K"), alike=("0O",))
