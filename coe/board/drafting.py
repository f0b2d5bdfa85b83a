"""Board files of the experts there are: a draft, which lets nothing pass until a person fills it in, or chosen ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from coe.board import rules
from coe.core import NOTHING, Expert
from coe.errors import ConfigError
from coe.helpers.visible import visible

TODO = "TODO"
"""The word in a file where a person must decide."""
FIRST_EXPERT = "first-look"
"""The expert of a first board, which compares each part with that of a good board."""
_HEAD = """\
# A draft: every picture goes to REVIEW until each TODO is done.
board: {board}

experts:
"""
_COMPONENTS = """
components:
"""
_COMPONENT = """\
  {name}:  # TODO: the component, as its pictures name it; one entry for each component that this expert inspects
    count: 1  # TODO: how many a board has
    inspect: {name}
    then: {then}  # TODO: OK, NG, REVIEW or an expert for each label
"""


def check_name(name: str) -> None:
    """Raise ConfigError for what cannot name a board and its files."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", name):
        raise ConfigError(f"'{visible(name[:100])}' is not a name of a board; use letters, digits and ._+-, e.g. line7")
    if name.casefold().endswith(".calibration"):
        raise ConfigError(f"'{name}' is the name of another board's calibration file; give another name")


def draft_of(board: str, experts: Iterable[Expert]) -> str:
    """Return the text of a board file with one component for each expert; raises RulesError for names that it refuses.

    An expert's id is its name in the file, and its labels all mean REVIEW, as does a detector that sees nothing.
    """
    experts = list(experts)
    lines = [_HEAD.format(board=flow(board))]
    lines += [
        f"  {flow(expert.id)}: {{kind: {flow(expert.kind)}, labels: {flow(list(expert.labels))}, "
        f"input: {expert.input_size}}}\n"
        for expert in experts
    ]
    lines.append(_COMPONENTS)
    for expert in experts:
        then = flow(dict.fromkeys((*expert.labels, NOTHING), "REVIEW"))
        lines.append(_COMPONENT.format(name=flow(expert.id), then=then))
    text = "".join(lines)
    rules.of_bytes(Path(f"{board}.yaml"), text.encode())
    return text


def flow(value: object) -> str:
    """Return a value as YAML in one line."""
    said: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 30, allow_unicode=True, sort_keys=False)
    return said.removesuffix("\n").removesuffix("\n...")


def lines_of(
    experts: Iterable[Expert], *, detectors: Iterable[str], polarity: Mapping[str, bool | None] | None = None
) -> str:
    """Return the entries `experts` and `components`: labels to `reject` are NG, others OK.

    A detector, by its id, passes a part in which it sees nothing. Each expert inspects the component of its name, whose
    `polarity` is written if it is known.
    """
    experts, passing, known = list(experts), set(detectors), polarity or {}
    text = "experts:\n"
    for one in experts:
        then = f", then: {{{NOTHING}: OK}}" if one.id in passing else ""
        text += (
            f"  {flow(one.id)}: {{kind: {flow(one.kind)}, labels: {flow(list(one.labels))}, input: {one.input_size}, "
            f"reject: {flow(sorted(one.reject))}{then}}}\n"
        )
    said = {True: ", polarity: yes", False: ", polarity: no", None: ""}
    components = (f"  {flow(one.id)}: {{inspect: {flow(one.id)}{said[known.get(one.id)]}}}\n" for one in experts)
    return text + "components:\n" + "".join(components)


def board_text(board: str, lines: str, bits: int | None = None) -> str:
    """Return a board file of these lines, and `bits` of 16-bit samples; raises RulesError for names that it refuses."""
    said = "" if bits is None else f"bits: {bits}\n"
    text = f"board: {flow(board)}\n{said}{lines}"
    rules.of_bytes(Path(f"{board}.yaml"), text.encode())
    return text
