"""Board files that are wrong: each is refused with file, line and the way out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coe.board import rules
from coe.errors import RulesError

Write = Callable[[str | bytes], Path]

GOOD = """\
board: demo
experts:
  chip-resistor:
    kind: resnet18
    labels: [ok, missing, cracked]
    input: 96
  joint: {kind: yolov5n, labels: [joint, bridge], input: 160, reject: [bridge]}
components:
  R0402:
    count: 24
    inspect: chip-resistor
    min_score: 0.80
    shares: {ok: 0.9}
    then:
      ok: joint
      missing: NG
      cracked: [joint]
"""

CHANGES = {
    "an expert that is not there, in `inspect`": (
        "inspect: chip-resistor",
        "inspect: chip-resistr",
        "board.yaml:11: 'chip-resistr' is not an expert; did you mean 'chip-resistor'?",
    ),
    "an expert that is not there, as a next step": (
        "ok: joint",
        "ok: joiny",
        "board.yaml:15: 'joiny' is not an expert; did you mean 'joint'?",
    ),
    "an expert that is not there, in a list": (
        "[joint]\n",
        "[joint, jiont]\n",
        "board.yaml:17: 'jiont' is not an expert; did you mean 'joint'?",
    ),
    "an expert twice in a list": (
        "cracked: [joint]",
        "cracked: [joint, joint]",
        "board.yaml:17: 'joint' stands twice in this list",
    ),
    "a verdict in the wrong case": (
        "missing: NG",
        "missing: ng",
        "board.yaml:16: 'ng' is not an expert; known: NG, OK, REVIEW, chip-resistor, joint",
    ),
    "a key of an expert": (
        "    input: 96",
        "    inptu: 96",
        "board.yaml:6: 'inptu' is not a key of 'experts.chip-resistor'; did you mean 'input'?",
    ),
    "a key of a component": (
        "count: 24",
        "cuont: 24",
        "board.yaml:10: 'cuont' is not a key of 'components.R0402'; did you mean 'count'?",
    ),
    "a key of the board": (
        "board: demo",
        "borad: demo",
        "board.yaml:1: 'borad' is not a key; did you mean 'board'?",
    ),
    "a key of a nested step": (
        "ok: joint",
        "ok: {inspct: joint}",
        "board.yaml:15: 'inspct' is not a key of 'components.R0402.then.ok'; did you mean 'inspect'?",
    ),
    "a key twice": (
        "    count: 24\n",
        "    count: 24\n    count: 25\n",
        "board.yaml:11: 'count' stands here twice; the first is on line 10",
    ),
    "a component twice": (
        "    count: 24\n",
        "    count: 24\n    inspect: joint\n  R0402:\n",
        "board.yaml:12: 'R0402' stands here twice; the first is on line 9",
    ),
    "no inspect": ("    inspect: chip-resistor\n", "", "board.yaml:9: 'components.R0402.inspect' is missing"),
    "no kind": ("    kind: resnet18\n", "", "board.yaml:3: 'experts.chip-resistor.kind' is missing"),
    "no board": ("board: demo\n", "", "board.yaml:1: 'board' is missing"),
    "a label that no rule covers": (
        "      missing: NG\n",
        "",
        "board.yaml:9: no rule covers label 'missing' of 'chip-resistor'; add it to `then`",
    ),
    "a rule for a label that is not there": (
        "missing: NG",
        "mising: NG",
        "board.yaml:16: 'mising' is not a label of 'chip-resistor'; did you mean 'missing'?",
    ),
    "a share for a label that is not there": (
        "shares: {ok: 0.9}",
        "shares: {okay: 0.9}",
        "board.yaml:13: 'okay' is not a label of 'chip-resistor'; did you mean 'ok'?",
    ),
    "shares over 1": (
        "{ok: 0.9}",
        "{ok: 0.9, missing: 0.2}",
        "board.yaml:13: the shares of 'chip-resistor' add up to 1.1, not 1",
    ),
    "shares of all labels under 1": (
        "{ok: 0.9}",
        "{ok: 0.5, missing: 0.2, cracked: 0.2}",
        "board.yaml:13: the shares of 'chip-resistor' add up to 0.9, not 1",
    ),
    "a rejected label that is not there": (
        "reject: [bridge]",
        "reject: [brigde]",
        "board.yaml:7: 'brigde' is not a label of 'joint'; did you mean 'bridge'?",
    ),
    "a label twice": (
        "[ok, missing, cracked]",
        "[ok, missing, ok]",
        "board.yaml:5: expert 'chip-resistor': label 'ok' stands twice",
    ),
    "the label none": (
        "[joint, bridge]",
        "[none, bridge]",
        "board.yaml:7: expert 'joint': 'none' is reserved for a detector that sees nothing",
    ),
    "an expert with the name of a verdict": (
        "  joint: {",
        "  OK: {",
        "board.yaml:7: 'OK' is a verdict and cannot be the name of an expert",
    ),
    "an empty list of next steps": (
        "cracked: [joint]",
        "cracked: []",
        "board.yaml:17: an empty list decides nothing; write OK, NG, REVIEW or an expert",
    ),
    "nothing as a next step": (
        "cracked: [joint]",
        "cracked:",
        "board.yaml:17: write OK, NG, REVIEW, an expert, a list of experts or a nested step here",
    ),
    "a component that is only a word": (
        "components:\n",
        "components:\n  R1: joint\n",
        "board.yaml:9: 'components.R1' must hold entries of the form `key: value`",
    ),
    "a list at the top": (
        GOOD,
        "- board\n- experts\n",
        "board.yaml:1: write entries of the form `key: value`; it needs board, experts and components",
    ),
    "a word at the top": (
        GOOD,
        "board",
        "board.yaml:1: write entries of the form `key: value`; it needs board, experts and components",
    ),
    "an expert that nobody uses": (
        "components:\n",
        "  polarity: {kind: k, labels: [a], input: 8, reject: [a]}\ncomponents:\n",
        "board.yaml:8: expert 'polarity' is reached from no component",
    ),
    "a circle of one": (
        "reject: [bridge]}",
        "reject: [bridge], then: {joint: joint}}",
        "board.yaml:7: experts follow each other in a circle: joint -> joint",
    ),
    "a circle inside a component": (
        "reject: [bridge]}",
        "reject: [bridge], then: {joint: chip-resistor}}",
        "board.yaml:7: experts follow each other in a circle: chip-resistor -> joint -> chip-resistor",
    ),
    "a circle across components": (
        "components:\n",
        "components:\n  U1:\n    inspect: joint\n"
        "    then: {joint: {inspect: chip-resistor, then: {ok: OK, missing: OK, cracked: OK}}}\n",
        "board.yaml:7: experts follow each other in a circle: joint -> chip-resistor -> joint",
    ),
    "every count 0": ("count: 24", "count: 0", "board.yaml:8: every count is 0; at least one component must occur"),
    "an alias": ("ok: joint", "ok: *joint", "board.yaml:15: '*joint' is an alias; write the entry out"),
    "a python object": (
        "ok: joint",
        "ok: !!python/object/apply:os.system [id]",
        "board.yaml:15: 'tag:yaml.org,2002:python/object/apply:os.system' is a tag; write plain words, without '!'",
    ),
    "a second document": (
        "components:\n",
        "---\ncomponents:\n",
        "board.yaml:8: not valid YAML: but found another document",
    ),
    "a tab": (
        "    count: 24",
        "\tcount: 24",
        "board.yaml:10: not valid YAML: found character that cannot start any token",
    ),
    "an open bracket": ("{ok: 0.9}", "{ok: 0.9", "board.yaml:14: not valid YAML: did not find expected ',' or '}'"),
    "a list as a key": ("ok: joint", "[ok]: joint", "board.yaml:15: a key must be a single word"),
    "a NUL": (
        "count: 24",
        "count: \0",
        "board.yaml:10: not valid YAML: unacceptable character #x0000: control characters are not allowed",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), CHANGES.values(), ids=CHANGES)
def test_a_wrong_file_is_refused_with_its_line(board_file: Write, old: str, new: str, message: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(RulesError) as caught:
        rules.load(board_file(GOOD.replace(old, new)))
    assert str(caught.value) == message


NUMBERS = [
    ("count: 24", "count: nan", 10, "not 'nan'"),
    ("count: 24", "count: .inf", 10, "not '.inf'"),
    ("count: 24", "count: -1", 10, "not '-1'"),
    ("count: 24", "count: many", 10, "not 'many'"),
    ("count: 24", "count: 1e999", 10, "not '1e999'"),
    ("count: 24", "count: [1]", 10, "not ['1']"),
    ("min_score: 0.80", "min_score: 1.01", 12, "not '1.01'"),
    ("min_score: 0.80", "min_score: -0.1", 12, "not '-0.1'"),
    ("min_score: 0.80", "min_score: nan", 12, "not 'nan'"),
    ("min_score: 0.80", "min_scores: {ok: 1.01}", 12, "not '1.01'"),
    ("input: 96", "temperature: 0\n    input: 96", 6, "not '0'"),
    ("{ok: 0.9}", "{ok: -0.1}", 13, "not '-0.1'"),
    ("{ok: 0.9}", "{ok: 90}", 13, "not '90'"),
    ("input: 96", "input: 7", 6, "not '7'"),
    ("input: 96", "input: 100000", 6, "not '100000'"),
    ("input: 96", "input: 96.5", 6, "not '96.5'"),
    ("labels: [joint, bridge]", "labels: []", 7, "not []"),
    ("labels: [joint, bridge]", "labels: joint", 7, "not 'joint'"),
    ("board: demo", "board: ../demo", 1, "not '../demo'"),
    ("  R0402:", "  R 0402:", 9, "not 'R 0402'"),
]


@pytest.mark.parametrize(("old", "new", "line", "ending"), NUMBERS)
def test_a_wrong_value_is_refused_with_its_line(board_file: Write, old: str, new: str, line: int, ending: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(RulesError) as caught:
        rules.load(board_file(GOOD.replace(old, new)))
    assert str(caught.value).startswith(f"board.yaml:{line}: ")
    assert str(caught.value).endswith(ending)


def test_a_message_is_one_short_line_of_visible_characters_whatever_the_file_holds(board_file: Write) -> None:
    for word in ("x" * 300_000, '"\\e[2J\\nboard.yaml:1: all is well"'):
        with pytest.raises(RulesError) as caught:
            rules.load(board_file(GOOD.replace("ok: joint", f"ok: {word}")))
        assert len(str(caught.value)) < 1100
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith("board.yaml:15: ")


def test_more_steps_than_anyone_needs_are_refused(board_file: Write) -> None:
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok], input: 8, then: {{ok: e{i + 1}}}}}" for i in range(1500)]
    lines += ["  e1500: {kind: k, labels: [ok], input: 8, then: {ok: OK}}", "components: {R1: {inspect: e0}}"]
    with pytest.raises(RulesError, match=r"board.yaml:1: experts follow each other through hundreds of steps"):
        rules.load(board_file("\n".join(lines)))
