"""The board file of a board that is new: one expert compares each part with that of a good board."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """Return the board file: each component is compared with its reference."""
    lines = [
        f"  {part.name}: {{count: {len(part.refdes)}, inspect: {EXPERT}, reference: {part.name}}}\n"
        for part in drawn.parts
    ]
    return _HEAD.format(name=name, expert=EXPERT) + "".join(lines)
