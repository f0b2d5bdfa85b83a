"""Names that look the same: they meet, or a sentence writes both out."""

import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from pydantic import ValidationError
from texts import texts

from coe.board import parts_list, rules
from coe.board.board_spec import label_fault
from coe.board.parts_list import parse_places
from coe.bring.parts.answers import Answers
from coe.bring.parts.converting import convert
from coe.core import Expert
from coe.errors import ConfigError, RulesError
from coe.helpers.spelling import by_spelling, composed, look
from coe.inspector.weights_used import read_manifests
from coe.learn import labelled
from coe.serve.recipe_content import RecipeContent
from coe.serve.request import BoardRequest
from coe.store.store import Store

NFC = unicodedata.normalize("NFC", "Prüf")
NFD = unicodedata.normalize("NFD", NFC)
SAME = [
    ("1\u00b5", "1\u03bc"),
    ("10 k\u2126", "10 k\u03a9"),
    ("\u338c", "\u03bcF"),
    ("\u33c0", "k\u03a9"),
    ("4.7\u00a0k", "4.7 k"),
    ("4.7\u2009k ", "4.7  k"),
    ("SOT\u201123", "SOT-23"),
    ("SOT\u201323", "SOT-23"),
    ("\uff11\uff10\uff4b", "10k"),
    ("10\u212a", "10K"),
    ("10\u041a", "10K"),
    ("\u0421_0402", "C_0402"),
    ("10\u200bk", "10k"),
    ("5\uff05", "5%"),
    (NFC, NFD),
]
OTHER = [("10\u00b2", "102"), ("1\u00bd", "11/2"), ("1M", "1m"), ("1u", "1\u00b5"), ("10k", "10 k"), ("10k", "1.0k")]


@pytest.mark.parametrize(("one", "other"), SAME, ids=map(ascii, SAME))
def test_values_that_look_the_same_are_the_same(one, other):
    assert one != other
    assert look(one) == look(other)


@pytest.mark.parametrize(("one", "other"), OTHER, ids=map(ascii, OTHER))
def test_values_that_look_different_stay_different(one, other):
    assert look(one) != look(other)


@given(texts())
def test_spelling_twice_changes_nothing_more(text):
    assert composed(composed(text)) == composed(text)
    assert look(look(text)) == look(text)
    assert look(composed(text)) == look(text)


def named(entries, rows, **more):
    said = Answers.model_validate({"unit": "mm", "packages": entries, **more})
    lines = [f'"{refdes}","{value}","{package}",12.7,3.5,90.0,top' for refdes, value, package in rows]
    file = "\n".join(["Ref,Val,Package,PosX,PosY,Rot,Side", *lines]).encode()
    with TemporaryDirectory() as folder:
        (path := Path(folder, "p.csv")).write_bytes(file)
        made = convert(path, None, said)
    assert Answers.model_validate(made.answers.model_dump()) == made.answers
    return [(part.refdes, part.component) for part in parse_places(Path("parts.csv"), made.text("p.csv").encode())]


@pytest.mark.parametrize(("one", "other"), SAME, ids=map(ascii, SAME))
@pytest.mark.parametrize("key", ["value", "package"])
def test_a_part_is_the_same_with_either_sign(key, one, other):
    entries = [{key: one, "component": "CAP"}, {"package" if key == "value" else "value": "P", "component": "OTHER"}]
    rows = [("C1", one, "P"), ("C2", other, "P")] if key == "value" else [("C1", "P", one), ("C2", "P", other)]
    assert named(entries, rows) == [("C1", "CAP"), ("C2", "CAP")]
    assert len({component for _, component in named([], rows)}) == 1


def test_two_entries_that_look_the_same_and_name_two_components_are_written_out():
    entries = [{"value": "1\u00b5", "component": "CAP"}, {"value": "1\u03bc", "component": "OTHER"}]
    with pytest.raises(ValidationError) as error:
        named(entries, [("C1", "1\u00b5", "P")])
    assert (r"\xb5" in str(error.value), r"\u03bc" in str(error.value)) == (True, True)


def test_the_first_of_two_equal_entries_still_counts_and_two_names_that_are_one_are_written_out():
    entries = [{"value": "1k", "component": "CAP"}, {"value": "1k", "component": "OTHER"}]
    assert named(entries, [("C1", "1k", "P")]) == [("C1", "CAP")]
    assert by_spelling(["a", NFD]) == {"a": "a", NFC: NFD}
    with pytest.raises(ValueError, match="two spellings of one name"):
        by_spelling([NFC, NFD])


def test_reference_designators_meet_in_lists_placements_and_recipes(tmp_path):
    rows = [(NFD, "1", ""), ("R2", "1", "")]
    assert named([{"value": "1", "component": "CAP"}], rows, not_inspected=[NFC]) == [(NFC, ""), ("R2", "CAP")]
    path = tmp_path / "parts.csv"
    path.write_text(f"refdes,component\n{NFD},C\n", encoding="utf-8")
    assert parts_list.read(path)[0].refdes == NFC
    path.write_text(f"refdes,component\n{NFD},C\n{NFC},C\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"parts\.csv:3"):
        parts_list.read(path)


def board(label):
    return f"""
board: tiny
experts:
  body: {{kind: narrow, labels: [ok, {label}], input: 48}}
components:
  C: {{inspect: body, then: {{ok: OK, {composed(label)}: NG}}}}
"""


def test_labels_meet_in_rules_weights_and_folders(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(board(NFD), encoding="utf-8")
    read = rules.load(path)
    assert read.experts["body"].labels == ("ok", NFC)
    store = Store(tmp_path / "store")
    from coe.store import kinds

    expert = Expert("body", "narrow", ("ok", NFD), 48, "tiny/body")
    state = kinds.resolve("narrow").skeleton(expert).state_dict()
    store.put("tiny/body", kind="narrow", labels=("ok", NFD), input_size=48, state=state)
    assert read_manifests(read, store)["tiny/body"].labels == ("ok", NFD)
    (tmp_path / "pictures" / "body" / NFD).mkdir(parents=True)
    (tmp_path / "pictures" / "body" / NFD / "a.png").write_bytes(b"")
    (picture,) = labelled.find(tmp_path / "pictures", read.experts)
    assert picture.label == NFC
    assert label_fault(["ok", NFC, NFD]) is not None


def test_one_label_in_two_spellings_is_refused_in_a_board_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(board(NFC).replace(f"{NFC}: NG", f"{NFC}: NG, {NFD}: OK"), encoding="utf-8")
    with pytest.raises(RulesError, match="twice"):
        rules.load(path)


def test_a_recipe_and_a_request_of_the_service_meet():
    content = RecipeContent(rules=board("bad"), parts={NFD: "C"})
    request = BoardRequest(recipe="r", serial=NFD, views={"v": {"refdes": NFD, "component": "C"}})
    assert content.parts == {NFC: "C"}
    assert (request.serial, request.views["v"].refdes) == (NFC, NFC)
    request.check(content, content.board("r"), {"v": "0" * 64})
    with pytest.raises(ValueError, match="parts"):
        RecipeContent(rules=board("bad"), parts={NFD: "C", NFC: "C"})
