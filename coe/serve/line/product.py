"""The `Inspector` of a recipe's version, opened beside the loop, which goes on deciding boards that are due.

Law: one product is open at a time, and no other module opens one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board.parts import PlacedPart
from coe.errors import sentence_of
from coe.files import write_atomically
from coe.serve.config import ServeConfig
from coe.serve.database.recipes import Recipe
from coe.serve.recipe import RecipeContent
from coe.store import dotted
from coe.store.store import Store
from coe.visible import visible

if TYPE_CHECKING:
    from coe.inspector.line import Line
    from coe.inspector.line_config import LineConfig
    from coe.results.metrics import Watcher

RECIPES = "recipes"
"""The folder of board files, written from the recipes in the database."""

OpenLine = Callable[[Path, Sequence[PlacedPart]], "Line"]
"""Opens a line for a board file and a parts list, which may be empty."""
Adjust = Callable[["LineConfig"], "LineConfig"]
"""Changes what a line is opened with: a benchmark adds a watcher, or another device."""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A recipe's version with its open line."""

    recipe: Recipe
    content: RecipeContent
    line: Line


@dataclass(frozen=True, slots=True)
class Opened:
    """The end of an attempt to open a recipe: `wanted` is what was asked for, `error` why it could not be opened.

    `product` is what is open now: after an error the product that was open before, or None if that fails too.
    """

    wanted: Recipe
    product: Product | None
    error: str = ""


def line_opener(config: ServeConfig, watcher: Watcher, adjust: Adjust | None = None) -> OpenLine:
    """Return a function that opens a line by the service's config, which `adjust` may change before."""

    def open_line(board: Path, parts: Sequence[PlacedPart]) -> Line:
        # torch takes seconds to import, and the loop has begun by then.
        from coe.inspector.line import Line
        from coe.inspector.line_config import LineConfig

        settings = config.line
        line_config = LineConfig(
            board=board,
            store=Store(settings.store),
            asked=settings.asked(),
            precision=settings.precision,
            label_floor=settings.label_floor,
            watchers=[watcher],
            parts=parts,
            allowed_kinds=dotted.packages(settings.allow_kinds),
        )
        return Line(adjust(line_config) if adjust else line_config)

    return open_line


class Products:
    """The open product, and the attempt to open another. The loop's thread alone uses it."""

    def __init__(self, folder: Path, open_line: OpenLine, ring: Callable[[], None]) -> None:
        self._folder = folder / RECIPES
        self._open_line, self._ring = open_line, ring
        self._thread = ThreadPoolExecutor(1, "coe-product")
        self._attempt: Future[Opened] | None = None
        self.current: Product | None = None

    @property
    def is_opening(self) -> bool:
        """Whether an attempt is under way; then there is no product."""
        return self._attempt is not None

    def begin_to_open(self, recipe: Recipe) -> None:
        """Begin to close the current product, which has no board under way, and to open another."""
        before, self.current = self.current, None
        self._attempt = self._thread.submit(self._change, before, recipe)
        self._attempt.add_done_callback(lambda _: self._ring())

    def finished(self) -> Opened | None:
        """Return the end of the attempt once it has ended, and make its product the current product."""
        if self._attempt is None or not self._attempt.done():
            return None
        attempt, self._attempt = self._attempt, None
        opened = attempt.result()
        self.current = opened.product
        return opened

    def give_up(self) -> None:
        """Let go of the current product, whose line has failed; its images are answered, and nobody waits."""
        if self.current is not None:
            self.current.line.stop()
            self.current = None

    def close(self) -> None:
        """Close the current product; waits for images under way, unless `stop` was called."""
        if self._attempt is not None:
            self.current = self._attempt.result().product
            self._attempt = None
        if self.current is not None:
            self.current.line.close()
            self.current = None
        self._thread.shutdown()

    def _change(self, before: Product | None, recipe: Recipe) -> Opened:
        if before is not None:
            before.line.close()
        try:
            return Opened(recipe, self._opened(recipe))
        except Exception as error:  # whatever a kind's code raises: the line goes on with the other recipe
            reason = visible(sentence_of(error, during="the recipe was opened"), lines=True)
        with suppress(Exception):  # else it is opened again when a board needs it
            if before is not None:
                return Opened(recipe, self._opened(before.recipe), reason)
        return Opened(recipe, None, reason)

    def _opened(self, recipe: Recipe) -> Product:
        content = RecipeContent.model_validate(recipe.content)
        content.board(recipe.name)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{recipe.id}.yaml"
        write_atomically(path, [content.rules])
        line = self._open_line(path, _parts(content))
        try:
            line.ready()
        except BaseException:
            line.close()
            raise
        return Product(recipe, content, line)


def _parts(content: RecipeContent) -> Sequence[PlacedPart]:
    """Return the parts of a whole board, or of a whole panel, in the order in which their crops are handed in."""
    if content.whole is None:
        return ()
    return [PlacedPart(site.component, site.name) for site in content.whole.layout.sites]
