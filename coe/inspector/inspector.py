"""The public Python API: pictures in, verdicts out.

    with Inspector(board="A") as line:
        future = line.submit(image, component="R0402", serial="SN1")
        for result in line.stream(pictures):
            ...

From asyncio: `result = await line.inspect(image, component="R0402")`.
"""

from __future__ import annotations

import inspect
import textwrap
from typing import Unpack

from coe import config
from coe.errors import did_you_mean
from coe.inspector.asked_boards import Boards
from coe.inspector.line import Line
from coe.inspector.line_options import OPTIONS, LineArguments, LineOptions
from coe.pictures.image_source import Picture

__all__ = ["Inspector", "Picture"]


class Inspector(Line):
    """A running line for one board, or for several, which share the memory and the experts that are equal.

    Example:
        >>> with Inspector("demo", memory="150MB") as line:
        ...     print(line.submit("R7.png", component="R0402-10K", refdes="R7").result().verdict)
        OK

    Options that are not given come from this machine's profile (`coe-profile`), or are defaults. `set_boards` changes
    the boards while the line runs. docs/api.md has a table of the options. Errors are raised before any thread starts.

    Raises:
        ConfigError: An option cannot be used; `option` of the error is its name. Also for options that the strategy or
            several boxes would ignore.
        RulesError: A board file cannot be used.
        StoreError: Weights or references are missing, damaged, or do not fit the rules.
    """

    def __init__(self, board: Boards, **options: Unpack[LineArguments]) -> None:
        if unknown := [name for name in options if name not in OPTIONS]:
            raise TypeError(f"Inspector() has no option '{unknown[0]}'{did_you_mean(unknown[0], OPTIONS)}")
        super().__init__(LineOptions.of(board, **options))


def _complete_documentation() -> None:
    """Let `help(Inspector)` list the options, with their types, defaults and sentences."""
    types, fields = LineArguments.__annotations__, LineOptions.model_fields
    made = {"store": None, "strategy": config.STRATEGY}  # the options whose defaults are made of these
    lines = ["Args:"]
    parameters = []
    for name, option in OPTIONS.items():
        said = f"{name}: {option.help}" + (f" Default: {option.default}." if option.default else "")
        lines += textwrap.wrap(said, 112, initial_indent="    ", subsequent_indent="        ")
        kind = types[name].__forward_arg__ if name in types else "Boards"
        default = inspect.Parameter.empty if fields[name].is_required() else made.get(name, fields[name].default)
        place = inspect.Parameter.POSITIONAL_OR_KEYWORD if name == "board" else inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, place, default=default, annotation=kind))
    Inspector.__doc__ = f"{inspect.cleandoc(Inspector.__doc__ or '')}\n\n" + "\n".join(lines)
    Inspector.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]


_complete_documentation()
