"""The words of the framework: second looks, and what was decided."""

import pytest

from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict, again_id, decided, deciding
from coe.errors import first_line
from coe.store.expert_id import ExpertId


def says(expert, label):
    return Finding(expert, "q8", label, 0.5)


def test_where_an_expert_looked_again_its_second_finding_decides_in_any_order():
    looks = [says("a", "ok"), says(again_id("a"), "bad"), says("b", "ok")]
    for findings in (looks, looks[::-1]):
        found = decided({one.expert: one for one in findings})
        assert {expert: one.label for expert, one in found.items()} == {"a": "bad", "b": "ok"}
    assert [one.expert for one in deciding(looks)] == [again_id("a"), "b"]


def test_an_error_is_the_sentence_of_a_failure_and_its_first_line_is_never_blank():
    request = Request(0, "R0402", submitted_s=1.0, due_s=2.0)
    refused = Result.refused(request, Failure(FailureKind.STOPPED, "too late"), now=3.0)
    assert (refused.verdict, refused.error, refused.latency_s, refused.late) == (None, "too late", 2.0, True)
    assert Result(request, Verdict.OK, (), 0.1).error is None
    assert first_line(ValueError("no room\nat line 3")) == "no room"
    assert first_line(ValueError("\n  \n  it is damaged \n")) == "it is damaged"
    assert [first_line(error) for error in (ValueError(), ValueError("\n"))] == ["ValueError", "ValueError"]


# The parts of an expert's id, with a board and without


@pytest.mark.parametrize(
    ("text", "board", "name", "folders"),
    [("demo/resistor", "demo", "resistor", ("demo", "resistor")), ("resistor", "", "resistor", ("resistor",))],
)
def test_an_id_is_its_parts_and_back(text, board, name, folders):
    expert = ExpertId.of(text)
    assert expert == ExpertId(board, name)
    assert (expert.folders, str(expert)) == (folders, text)
