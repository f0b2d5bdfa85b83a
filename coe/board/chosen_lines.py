"""The lines of a board file for components whose experts were chosen: one expert for each component."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from coe.board import rules
from coe.board.drafting import flow
from coe.core import NOTHING, Expert


def lines_of(experts: Iterable[Expert], *, detectors: Iterable[str]) -> str:
    """Return the entries `experts` and `components`: labels to `reject` are NG, others OK.

    A detector, by its id, passes a part in which it sees nothing. Each expert inspects the component of its name.
    """
    experts, passing = list(experts), set(detectors)
    text = "experts:\n"
    for one in experts:
        then = f", then: {{{NOTHING}: OK}}" if one.id in passing else ""
        text += (
            f"  {flow(one.id)}: {{kind: {flow(one.kind)}, labels: {flow(list(one.labels))}, input: {one.input_size}, "
            f"reject: {flow(sorted(one.reject))}{then}}}\n"
        )
    return text + "components:\n" + "".join(f"  {flow(one.id)}: {{inspect: {flow(one.id)}}}\n" for one in experts)


def text_of(board: str, lines: str) -> str:
    """Return a board file of these lines; raises RulesError for names that it refuses."""
    text = f"board: {flow(board)}\n{lines}"
    rules.of_bytes(Path(f"{board}.yaml"), text.encode())
    return text
