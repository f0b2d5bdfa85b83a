"""The board file of a board that is new: one expert compares each part with that of a good board."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coe.board.polarity import is_known

if TYPE_CHECKING:
    from coe.placement.draft_recipe import BoardPlan

EXPERT = "first-look"
_HEAD = """\
# A first board file: one expert compares each part with that of a good board. docs/rules.md explains it.
board: {name}
experts:
  {expert}: {{kind: difference, labels: [different], input: 160, reject: [different], then: {{none: OK}}}}
components:
"""


def rules_text(name: str, drawn: BoardPlan) -> str:
    """Return the board file: each component is compared with its reference; `polarity` is known by its names."""
    lines = []
    for part in drawn.parts:
        polarity = ", polarity: yes" if any(is_known(part.name, refdes) for refdes in part.refdes) else ""
        seen = [refdes for refdes in part.refdes if refdes not in drawn.unseen]
        out = "" if seen else "# no picture shows all of it, see not_inspected of the recipe: "
        count = len(seen or part.refdes)
        lines.append(f"  {out}{part.name}: {{count: {count}, inspect: {EXPERT}, reference: {part.name}{polarity}}}\n")
    return _HEAD.format(name=name, expert=EXPERT) + "".join(lines)
