"""What the commands print with. Law: text that is not ours is never read as markup, and never obeyed by a terminal.

Only this file makes consoles, bars and their columns of text, so that no place that prints can forget it: a sentence
or a cell may hold any name. What is styled is styled by `styled`, never by markup within the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import console, progress
from rich.segment import Segment
from rich.text import Text

from coe.visible import is_visible, visible


class Console(console.Console):
    """A console of rich's on which a text is what it says, whatever is in it.

    `stderr` chooses the stream, `width` is in columns; None: that of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    @property
    def encoding(self) -> str:
        """The encoding of the stream; in ASCII, rich draws lines and bars of plain characters."""
        return (getattr(self.file, "encoding", None) or "utf-8").lower()

    def render_str(self, text: str, **options: Any) -> Text:
        """Turn a sentence or a cell into what is laid out; it takes the room that it takes when it is shown."""
        return super().render_str(visible(text), **{**options, "markup": False, "emoji": False, "highlight": False})

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, and look once more at what was no plain text, as a `Text` that somebody made."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text, lines=True), segment.style)

    def print_json(self, json: str | None = None, **options: Any) -> None:
        """Print JSON for people and programs: what could not be shown is escaped as JSON has it."""
        plain = is_visible(json or "") and self.encoding.startswith("utf")
        super().print_json(json, **{**options, "ensure_ascii": not plain})


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a sentence of which some parts, given as (text, style), are styled; the texts may be anybody's."""
    return Text.assemble(*(visible(part) if isinstance(part, str) else (visible(part[0]), part[1]) for part in parts))


class _Words(progress.TextColumn):
    def render(self, task: progress.Task) -> Text:
        return Text(visible(self.text_format.format(task=task)), style=self.style, justify=self.justify)


def words(text: str, style: str = "none") -> progress.TextColumn:
    """Return a column of a bar that says a text, in which `{task.description}` and `{task.fields[...]}` are filled."""
    return _Words(text, style=style)


class Progress(progress.Progress):
    """A bar of rich's whose descriptions may be anybody's."""

    @classmethod
    def get_default_columns(cls) -> tuple[progress.ProgressColumn, ...]:
        """Return what a bar shows that is given no columns."""
        return words("{task.description}", "progress.description"), *super().get_default_columns()[1:]
