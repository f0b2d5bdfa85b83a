"""Consoles and bars of the commands. Law: foreign text is never read as markup, and never controls the terminal.

A sentence or a cell may hold any name. Only this file makes consoles, bars and their columns of text, so all output
keeps the law. `styled` gives styles; markup within a text never does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich import console, progress
from rich.cells import cell_len
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from coe.core import Verdict
from coe.helpers.visible import is_visible, visible

COLOURS = {Verdict.OK: "green", Verdict.NG: "bold red", Verdict.REVIEW: "yellow"}
_WIDEST = 100_000
"""Columns that no table needs."""


class Console(console.Console):
    """A console of rich that shows each text literally.

    `stderr` chooses the stream; `width` is in columns, None for that of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a sentence is one line, however narrow the window is, and no cell of a table is cut.

        On a terminal, cells that do not fit go on in the next line, those of the first column last. Elsewhere a row is
        one line.
        """
        for table in (one for one in objects if isinstance(one, Table)):
            if not self.is_terminal:
                natural = Measurement.get(self, self.options.update(max_width=_WIDEST), table).maximum
                self.width = max(self.width, natural)
            elif table.columns:
                longest = max((cell_len(str(cell)) for cell in table.columns[0].cells), default=0)
                table.columns[0].no_wrap = 2 * longest < self.width
        sentence = all(isinstance(one, str | Text) for one in objects)
        super().print(*objects, **{"soft_wrap": sentence, **options})

    @property
    def encoding(self) -> str:
        """The encoding of the stream; in ASCII, rich draws lines and bars of plain characters."""
        return (getattr(self.file, "encoding", None) or "utf-8").lower()

    def render_str(self, text: str, **options: Any) -> Text:
        """Turn a sentence or a cell into a Text, in its visible form, so that layout and display agree in width."""
        return super().render_str(visible(text), **{**options, "markup": False, "emoji": False, "highlight": False})

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, and make all segments visible: a `Text` does not pass through `render_str`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, lines=True), segment.style)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """Print JSON for people and programs; characters that cannot be shown are escaped in JSON's way."""
        plain = is_visible(json or "") and self.encoding.startswith("utf")
        super().print_json(json, **{**options, "ensure_ascii": not plain})


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a sentence of parts, plain or as (text, style); a part may hold foreign text."""
    return Text.assemble(*(visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts))


class _Words(progress.TextColumn):
    def render(self, task: progress.Task) -> Text:
        return Text(visible(self.text_format.format(task=task)), style=self.style, justify=self.justify)


def words(text: str, column: Column | None = None, *, style: str = "none") -> progress.TextColumn:
    """Return a column of a bar with a text, in which `{task.description}` and `{task.fields[...]}` are filled in."""
    return _Words(text, style=style, table_column=column)


class Progress(progress.Progress):
    """A bar of rich whose descriptions may hold foreign text."""

    @classmethod
    def get_default_columns(cls) -> tuple[progress.ProgressColumn, ...]:
        """Return the columns of a bar that names none."""
        return words("{task.description}", style="progress.description"), *super().get_default_columns()[1:]


def table_of(*headings: str, left: Collection[str]) -> Table:
    """Return a table without lines; numbers stand at the right, and the columns `left` at the left."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
    return table


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as a table, with the keys as headings; columns of texts stand at the left, and None is no text."""
    headings = list(rows[0])
    left = {name for name in headings if all(isinstance(row[name], str | Text | None) for row in rows)}
    table = table_of(*headings, left=left)
    for row in rows:
        cells = (row[name] for name in headings)
        table.add_row(*(cell if isinstance(cell, Text) else "" if cell is None else str(cell) for cell in cells))
    return table
