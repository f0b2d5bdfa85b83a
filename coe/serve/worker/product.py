"""The line with all recipes that are needed, opened and changed beside the loop, which goes on deciding boards.

There is one line with one memory budget, and no other module opens it or changes its recipes. What is wrong with a
recipe keeps that recipe away, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board import calibration_file
from coe.board.parts_list import PlacedPart
from coe.board.router import Router
from coe.errors import BoardsClash, LineClosed, sentence_of
from coe.helpers.files import write_atomically
from coe.helpers.visible import visible
from coe.inspector.asked_boards import AskedBoard
from coe.serve.database.tables import Recipe
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import ServeConfig
from coe.serve.worker.line_watch import LineWatch

if TYPE_CHECKING:
    from coe.inspector.line import Line

RECIPES = "recipes"  # the folder of board files, written from the recipes in the database

OpenLine = Callable[[Sequence[AskedBoard]], "Line"]  # for board files, each with its parts list, if any


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A recipe's version on the open line; `router` is that of its own rules, with the names of its board file."""

    recipe: Recipe
    router: Router
    line: Line

    @property
    def name(self) -> str:
        """The name of its board on the line."""
        return _name(self.recipe)


@dataclass(slots=True)
class Changed:
    """The end of a change: `products` are on the line now, by the id of their recipe.

    `refused` are recipes that could not be opened, and `apart` those that cannot be on this line together with the
    others, but perhaps on a line that is opened for them first; each with the reason. `is_lost` says that the line has
    failed meanwhile.
    """

    products: dict[int, Product]
    refused: dict[int, str] = field(default_factory=dict)
    apart: dict[int, str] = field(default_factory=dict)
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class _ReadRecipe:
    """A recipe's version that is to be on the line."""

    recipe: Recipe
    router: Router
    asked: AskedBoard


def line_opener(config: ServeConfig, watch: LineWatch) -> OpenLine:
    """Return a function that opens a line by the service's config, and has it watched."""

    def open_line(boards: Sequence[AskedBoard]) -> Line:
        # torch takes seconds to import, and the loop has begun by then.
        from coe.inspector.line import Line

        settings = config.line
        watch.begin()
        # Several boxes learn the order of parts from the boards that came before.
        boards = boards if settings.cluster is None else [replace(board, parts=()) for board in boards]
        return Line(settings.options(boards, watchers=[watch]))

    return open_line


class Products:
    """The recipes on the line, and a change of them. The loop's thread alone uses it."""

    def __init__(self, folder: Path, open_line: OpenLine, ring: Callable[[], None]) -> None:
        self._folder = folder / RECIPES
        self._open_line, self._ring = open_line, ring
        self._thread = ThreadPoolExecutor(1, "coe-product")
        self._attempt: Future[Changed] | None = None
        self._line: Line | None = None
        self._opening: Line | None = None
        self.current: Mapping[int, Product] = {}
        """By the id of their recipe: what boards can be inspected by now, during a change too."""

    @property
    def is_changing(self) -> bool:
        """Whether a change is under way."""
        return self._attempt is not None

    @property
    def line(self) -> Line | None:
        """The open line; None without a recipe on it."""
        return next((product.line for product in self.current.values()), None)

    @property
    def watched_line(self) -> Line | None:
        """The open line, or the line that loads its first experts."""
        return self.line or self._opening

    def begin_to_change(
        self,
        wanted: Sequence[Recipe],
        *,
        again: int | None = None,
        anew: bool = False,
        refused: Mapping[int, str] | None = None,
    ) -> None:
        """Begin to make the wanted recipes those on the line; recipes that are on it already go on meanwhile.

        The recipe `again` is read again, and takes no board meanwhile. With `anew` the line, on which no board is under
        way, is closed, and another is opened: for the first recipe, and for the others as far as they fit.
        Recipes that are `refused` must not be opened, each for its reason.
        """
        kept = {} if anew else {one.id: self.current[one.id] for one in wanted if one.id in self.current}
        coming = [one for one in wanted if one.id not in kept or one.id == again]
        self.current = {id: product for id, product in kept.items() if id != again}
        self._attempt = self._thread.submit(self._change, Changed(kept, dict(refused or {})), coming, anew)
        self._attempt.add_done_callback(lambda _: self._ring())

    def finished(self) -> Changed | None:
        """Return the end of the change once it has ended; its products are current from then on."""
        if self._attempt is None or not self._attempt.done():
            return None
        attempt, self._attempt = self._attempt, None
        changed = attempt.result()
        self.current = changed.products
        if changed.is_lost:
            self.give_up()
        return changed

    def give_up(self) -> None:
        """Let go of the line, which has failed; its images are answered, and nobody waits. Not during a change."""
        if self._line is not None:
            self._line.stop()
        self._line, self.current = None, {}

    def close(self, *, at_once: bool) -> None:
        """Close the line; `at_once` stops images that are under way, which are waited for else."""
        if at_once and (line := self.line) is not None:
            line.stop()
        self._thread.shutdown()
        self._attempt, self.current = None, {}
        self._close_line()

    def _close_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _change(self, changed: Changed, coming: Sequence[Recipe], anew: bool) -> Changed:
        if anew:
            self._close_line()
        read = []
        for recipe in coming:
            try:
                read.append(self._read(recipe))
            except Exception as error:
                changed.refused[recipe.id] = _reason(error, "the recipe was read")
        try:
            self._take(read, changed)
        except LineClosed:
            return Changed({}, is_lost=True)
        except Exception:
            return self._one_by_one(read, changed)
        return changed

    def _one_by_one(self, read: Sequence[_ReadRecipe], changed: Changed) -> Changed:
        """Find out which of several recipes it is that cannot be on the line."""
        for one in read:
            try:
                self._take([one], changed)
            except LineClosed:
                return Changed({}, is_lost=True)
            except BoardsClash as error:
                reasons = changed.apart if self._line is not None else changed.refused
                reasons[one.recipe.id] = str(error)
            except Exception as error:  # whatever a kind's code raises: the line goes on with the other recipes
                changed.refused[one.recipe.id] = _reason(error, "the recipe was opened")
        return changed

    def _take(self, coming: Sequence[_ReadRecipe], changed: Changed) -> None:
        """Let the line inspect these recipes beside those that it has; if this raises, it goes on as it was."""
        ids = {one.recipe.id for one in coming}
        keep = [product.name for id, product in changed.products.items() if id not in ids]
        asked = [one.asked for one in coming]
        if not asked and not keep:
            return
        if self._line is None:
            self._line = self._opened(asked)
        else:
            self._line.set_boards(asked, keep=keep)
        changed.products.update({one.recipe.id: Product(one.recipe, one.router, self._line) for one in coming})

    def _opened(self, asked: Sequence[AskedBoard]) -> Line:
        self._opening = line = self._open_line(asked)
        try:
            line.ready()
        except BaseException:
            line.close()
            raise
        finally:
            self._opening = None
        return line

    def _read(self, recipe: Recipe) -> _ReadRecipe:
        """Write the files of a recipe; raises ConfigError for a recipe that cannot be used, and OSError."""
        content = RecipeContent.model_validate(recipe.content)
        router = content.board(recipe.name).router
        path = write_board(self._folder / f"{recipe.id}.yaml", content)
        return _ReadRecipe(recipe, router, AskedBoard(path, parts=_parts(content), name=_name(recipe)))


def write_board(path: Path, content: RecipeContent) -> Path:
    """Write the board file of a recipe, and its calibration beside it, where they are not; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, text in ((path, content.rules), (calibration_file.path_for(path), content.calibration)):
        if not text:
            file.unlink(missing_ok=True)
        elif not file.exists() or file.read_bytes() != text.encode():  # a full disk must not keep it away
            write_atomically(file, [text])
    return path


def _reason(error: Exception, during: str) -> str:
    return visible(sentence_of(error, during=during), lines=True)


def _name(recipe: Recipe) -> str:
    return f"{recipe.name} {recipe.version}"


def _parts(content: RecipeContent) -> tuple[PlacedPart, ...]:
    """Return the parts of a whole board, or of a whole panel, in the order in which their crops are handed in."""
    if content.whole is None:
        return ()
    return tuple(PlacedPart(site.component, site.name) for site in content.whole.layout.sites)
