"""A draft of a board file, from the experts that there are. It lets nothing pass until a person fills it in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from coe.board import rules
from coe.core import NOTHING, Expert

TODO = "TODO"
"""The word in a file where a person must decide."""
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


def text_of(board: str, experts: Iterable[Expert]) -> str:
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
