"""The counts of trials in which experts learn from good parts alone."""

import numpy as np
import pytest

from apps.good_only import Part, Tally, table
from coe.cli.console import Console
from coe.core import Verdict

NOTHING = np.zeros((1, 1, 3), np.uint8)


def tally(*counted: tuple[str, Verdict | None]) -> Tally:
    result = Tally()
    for defect, verdict in counted:
        result.add(Part("U1", defect, NOTHING), verdict)
    return result


def test_everything_but_ok_is_a_call() -> None:
    counts = tally(
        ("", Verdict.OK),
        ("", Verdict.REVIEW),
        ("", None),
        ("hole", Verdict.OK),
        ("hole", Verdict.REVIEW),
        ("cut", None),
    )
    assert (counts.good, counts.false_calls, counts.bad, counts.escapes) == (3, 2, 3, 1)
    both = counts.joined(tally(("cut", Verdict.OK)))
    assert (both.bad, both.escapes, both.by_defect) == (4, 2, {"hole": [1, 2], "cut": [1, 2]})


def test_the_table_states_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=100).print(table("a trial", {"U1": tally(*[("", Verdict.OK)] * 10, *[("cut", Verdict.OK)] * 2)}))
    text = capsys.readouterr().out
    assert "0 of 10" in text
    assert "25.9%" in text
    assert "escapes by defect: cut 2 of 2" in text
