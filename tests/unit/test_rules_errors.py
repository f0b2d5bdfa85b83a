"""Board files that are wrong: each is refused with file, line and the way out."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

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

THEN = "      ok: joint\n      missing: NG\n      cracked: [joint]\n"
CHANGES = [
    ("inspect: chip-resistor", "inspect: chip-resistr", 11, "chip-resistr|chip-resistor"),
    ("ok: joint", "ok: joiny", 15, "joiny|joint"),
    ("[joint]\n", "[joint, jiont]\n", 17, "jiont|joint"),
    ("cracked: [joint]", "cracked: [joint, joint]", 17, "joint"),
    ("missing: NG", "missing: ng", 16, "ng|did you mean 'NG'"),
    ("    input: 96", "    inptu: 96", 6, "inptu|experts.chip-resistor|input"),
    ("count: 24", "cuont: 24", 10, "cuont|components.R0402|count"),
    ("board: demo", "borad: demo", 1, "borad|board"),
    ("ok: joint", "ok: {inspct: joint}", 15, "inspct|components.R0402.then.ok|inspect"),
    ("    count: 24\n", "    count: 24\n    count: 25\n", 11, "count|line 10"),
    ("    count: 24\n", "    count: 24\n    inspect: joint\n  R0402:\n", 12, "R0402|line 9"),
    ("    inspect: chip-resistor\n", "", 9, "components.R0402.inspect"),
    ("    kind: resnet18\n", "", 3, "experts.chip-resistor.kind"),
    ("board: demo\n", "", 1, "board"),
    ("      missing: NG\n", "", 9, "missing|chip-resistor"),
    ("      ok: joint\n      missing: NG\n", "      ok: {inspect: joint}\n", 9, "missing|chip-resistor"),
    ("missing: NG", "mising: NG", 16, "mising|chip-resistor|missing"),
    ("shares: {ok: 0.9}", "shares: {okay: 0.9}", 13, "okay|chip-resistor|ok"),
    ("{ok: 0.9}", "{ok: 0.9, missing: 0.2}", 13, "chip-resistor|1.1"),
    ("{ok: 0.9}", "{ok: 0.5, missing: 0.2, cracked: 0.2}", 13, "chip-resistor|0.9"),
    ("reject: [bridge]", "reject: [brigde]", 7, "brigde|joint|bridge"),
    ("[ok, missing, cracked]", "[ok, missing, ok]", 5, "chip-resistor|ok"),
    ("[joint, bridge]", "[none, bridge]", 7, "joint|none"),
    ("  joint: {", "  OK: {", 7, "OK"),
    ("cracked: [joint]", "cracked: []", 17, "empty list"),
    ("cracked: [joint]", "cracked:", 17, "components.R0402.then.cracked' has no value"),
    ("min_score: 0.80", "min_score:", 12, "components.R0402.min_score' has no value"),
    ("    then:\n" + THEN, "    then:\n", 14, "R0402.then' has no value"),
    ("reject: [bridge]", "reject: ", 7, "joint.reject' has no value"),
    ("[ok, missing, cracked]", "[ok, null, cracked]", 5, "chip-resistor.labels.1' has no value|quotes"),
    ("cracked: [joint]", "cracked: [joint, OK]", 17, "OK stands alone"),
    ("labels: [joint, bridge]", "labels: joint", 7, "experts.joint.labels|a list|'joint'"),
    ("min_score: 0.80", "min_score: '0,8'", 12, "R0402.min_score|a number|'0,8'"),
    ("components:\n", "components:\n  R1: joint\n", 9, "components.R1"),
    (GOOD, "- board\n- experts\n", 1, "write entries of the"),
    (GOOD, "board", 1, "write entries of the"),
    ("components:\n", "  polarity: {kind: k, labels: [a], input: 8, reject: [a]}\ncomponents:\n", 8, "polarity"),
    ("reject: [bridge]}", "reject: [bridge], then: {joint: joint}}", 7, "joint -> joint"),
    ("reject: [bridge]}", "reject: [bridge], then: {joint: chip-resistor}}", 7, "resistor -> joint -> chip-resistor"),
    (
        "components:\n",
        "components:\n  U1:\n    inspect: joint\n"
        "    then: {joint: {inspect: chip-resistor, then: {ok: OK, missing: OK, cracked: OK}}}\n",
        3,
        "chip-resistor -> joint -> chip-resistor",
    ),
    ("count: 24", "count: 0", 8, "0"),
    ("ok: joint", "ok: *joint", 15, "*joint"),
    ("ok: joint", "ok: !!python/object/apply:os.system [id]", 15, "tag:yaml.org,2002:python/object/apply:os.system|!"),
    ("components:\n", "---\ncomponents:\n", 8, "another document"),
    ("    count: 24", "\tcount: 24", 10, "a tab"),
    ("{ok: 0.9}", "{ok: 0.9", 13, "bracket"),
    ("ok: joint", "[ok]: joint", 15, "key"),
    ("count: 24", "count: \0", 10, "#x0000"),
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
    ("labels: [joint, bridge]", "labels: []", 7, "joint.labels|1 or more"),
    ("board: demo", "board: ../demo", 1, "board|'../demo' cannot be a name"),
    ("  R0402:", "  R 0402:", 9, "components|'R 0402' cannot be a name"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), CHANGES)
def test_a_wrong_file_is_refused_with_its_line_and_the_words_that_help(board_file, old, new, line, words):
    assert GOOD.count(old) == 1
    with pytest.raises(RulesError) as caught:
        rules.load(board_file(GOOD.replace(old, new)))
    assert str(caught.value).startswith(f"board.yaml:{line}: ")
    assert [word for word in words.split("|") if word not in str(caught.value)] == []


ALL_AT_ONCE = [
    ({"    input: 96": "    inptu: 96", "count: 24": "cuont: 24"}, "board.yaml:6: 'inptu'|board.yaml:10: 'cuont'"),
    ({"ok: joint": "okk: joint", "missing: NG": "mising: NG"}, "board.yaml:15: 'okk'|board.yaml:16: 'mising'"),
    ({"reject: [bridge]": "reject: [x]", "[ok, missing,": "[ok, ok,"}, "board.yaml:5: |board.yaml:7: 'x'"),
    (
        {"ok: joint": "ok: x", "components:\n": "components:\n  R1: {inspect: y}\n"},
        "board.yaml:9: 'y'|board.yaml:16: 'x'",
    ),
    (
        {
            "components:\n": "  p: {kind: k, labels: [a], input: 8, reject: [a]}\n"
            "  q: {kind: k, labels: [a], input: 8, reject: [a]}\ncomponents:\n"
        },
        "board.yaml:8: expert 'p'|board.yaml:9: expert 'q'",
    ),
    (
        {"min_score: 0.80": "min_score:", "    kind: resnet18": "    weights:\n    kind: resnet18"},
        "board.yaml:4: |board.yaml:13: ",
    ),
    (
        {"min_score: 0.80": "min_score: 1.5", "count: 24": "count: x", "    input: 96": "    inptu: 96"},
        "board.yaml:6: 'inptu'|board.yaml:10: |board.yaml:12: ",
    ),
    ({"missing: NG": "missing: {inspct: joint}"}, "board.yaml:16: 'inspct'"),
]


@pytest.mark.parametrize(("changes", "words"), ALL_AT_ONCE)
def test_all_faults_of_one_kind_are_told_at_once(board_file, changes, words):
    text = GOOD
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(RulesError) as caught:
        rules.load(board_file(text))
    assert [word for word in words.split("|") if word not in str(caught.value)] == []


def test_of_very_many_faults_the_first_are_looked_into(board_file, monkeypatch):
    assert rules.load(board_file(GOOD)).board == "demo"
    asked = []
    monkeypatch.setattr(rules, "did_you_mean", lambda word, known: asked.append(word) or "")
    words = ", ".join(f"x{number}: OK" for number in range(50))
    places = "".join(f"  R{number}: {{inspect: y{number}}}\n" for number in range(50))
    labels = GOOD.replace("ok: joint", words.replace(", ", "\n      "))
    for text, told in ((labels, "45 more"), (GOOD + places, "'y4'")):
        asked.clear()
        with pytest.raises(RulesError, match=told):
            rules.load(board_file(text))
        assert 0 < len(asked) < 10


def test_a_message_is_one_short_line_of_visible_characters_whatever_the_file_holds(board_file):
    for word in ("x" * 300_000, '"\\e[2J\\nboard.yaml:1: all is well"'):
        with pytest.raises(RulesError) as caught:
            rules.load(board_file(GOOD.replace("ok: joint", f"ok: {word}")))
        assert len(str(caught.value)) < 1100
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith("board.yaml:15: ")


def test_more_steps_than_anyone_needs_are_refused(board_file):
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok], input: 8, then: {{ok: e{i + 1}}}}}" for i in range(1500)]
    lines += ["  e1500: {kind: k, labels: [ok], input: 8, then: {ok: OK}}", "components: {R1: {inspect: e0}}"]
    with pytest.raises(RulesError, match=r"board.yaml:1: experts follow each other through hundreds of steps"):
        rules.load(board_file("\n".join(lines)))


# Whatever a file holds, it is read or refused; nothing else ever comes out


def load_or_complain(path, raw):
    path.write_bytes(raw)
    with suppress(RulesError):
        assert isinstance(rules.load(path), rules.Rules)


ODD_TEXT = st.one_of(texts(60), st.text(alphabet="ab:-[]{}!&*'\"#|>%@,? \t\n\r\0", max_size=60))


@given(st.one_of(st.binary(max_size=200), ODD_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_text_or_bytes_are_read_or_refused(tmp_path, raw):
    load_or_complain(tmp_path / "board.yaml", raw)


PIECES = ["", " ", "\t", "\0", "[", "{", "}", "*a", "&a ", "!!int ", "- ", ": ", "joint", "NG", "nan", "-1", "~", "\n"]
PIECES += ["'", "1e999"]


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=4)
)
def test_a_good_file_with_random_damage_is_read_or_refused(tmp_path, damage):
    text = GOOD
    for at, removed, piece in damage:
        text = text[:at] + piece + text[at + removed :]
    load_or_complain(tmp_path / "board.yaml", text.encode())


@given(st.data())
def test_a_good_file_with_words_that_changed_places_is_read_or_refused(tmp_path, data):
    words = GOOD.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        one, two = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[one], words[two] = words[two], words[one]
    load_or_complain(tmp_path / "board.yaml", " ".join(words).encode())
