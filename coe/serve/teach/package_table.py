"""The table of packages: pairs of package and value with their counts, and the component that each is inspected as.

What a person changes there goes into recipe and rules of the draft.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coe.board import rules
from coe.board.drafting import FIRST_EXPERT
from coe.board.parts_list import Side
from coe.bring.board.package_sizes import LIBRARY, read_library
from coe.bring.parts.answers import NamedParts
from coe.bring.parts.converting import Converted
from coe.bring.parts.placements import Placement
from coe.errors import ConfigError
from coe.helpers.files import write_atomically
from coe.helpers.strict_model import Name, StrictModel
from coe.placement import lay_out, parse_recipe, read_recipe
from coe.serve.teach import teach_steps
from coe.serve.teach.teach_draft import BoardDraft, text_of
from coe.serve.teach.teach_steps import crops

Millimetres = Annotated[float, Field(gt=0, le=500, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class PackageRow:
    """Parts of a package and value, as a component ("" if not inspected); `is_guess`: nobody has said the size."""

    package: str
    value: str
    refdes: tuple[str, ...]
    component: str
    size_mm: tuple[float, float] | None
    is_guess: bool
    is_left_out: bool


class NamedPackage(StrictModel):
    """What a person says of a row: what it is called, how large it is, and whether it is inspected."""

    package: str
    value: str
    component: Name | None
    size: tuple[Millimetres, Millimetres]


def rows_of(draft: BoardDraft) -> list[PackageRow]:
    """Return the rows, those of most parts first; raises ConfigError for files that cannot be read."""
    recipe, guessed = read_recipe(draft.recipe), draft.state.open
    rows = []
    for (package, value), places in _kinds(draft, draft.read()).items():
        component = next((place.component for place in places if place.component), "")
        spec = recipe.components.get(component)
        names = tuple(place.refdes for place in places)
        size = None if spec is None else spec.size
        rows.append(PackageRow(package, value, names, component, size, component in guessed, not component))
    return sorted(rows, key=lambda row: (row.is_left_out, not row.is_guess, -len(row.refdes)))


def _kinds(draft: BoardDraft, read: Converted) -> dict[tuple[str, str], list[Placement]]:
    kinds: dict[tuple[str, str], list[Placement]] = {}
    for place in read.parts:
        if place.side == Side(draft.state.side):
            kinds.setdefault((place.package, place.value), []).append(place)
    return kinds


def name(draft: BoardDraft, said: Sequence[NamedPackage]) -> None:
    """Write what a person said of the rows into recipe and board file; raises ConfigError, and writes nothing then."""
    edit = _Edit(draft)
    for one in said:
        edit.row(one)
    edit.finish()
    moves, gone = edit.photographs()
    teach_steps.remember(draft, "Parts named", moves=moves, replaced=gone)
    if edit.changes:
        draft.forget_scores()
    _remember_sizes(draft, edit.sized)
    draft.keep(edit.read)
    said_now = {"named": True, "recipe": edit.recipe, "rules": edit.rules, "open": tuple(edit.open)}
    draft.say(draft.state.model_copy(update=said_now))


def _remember_sizes(draft: BoardDraft, said: Sequence[NamedPackage]) -> None:
    """Add sizes that a person said to the library of all drafts: the next board that has such a package knows them."""
    path = draft.root / LIBRARY
    sizes = {one.package: one.size for one in (read_library(path) if path.is_file() else ())}
    new = {re.sub("^[DQU]_", "", one.package.rpartition(":")[2].strip()): one.size for one in said}
    if new := {package: size for package, size in new.items() if package and "*" not in package}:
        entries = [
            {"package": package, "size": [f"{side:.8g}" for side in size]}
            for package, size in (new | sizes | new).items()
        ]
        write_atomically(path, [text_of({"sizes": entries})])


class _Edit:
    """Recipe, rules and answers while they are changed; `read` is how the placement file reads by these."""

    def __init__(self, draft: BoardDraft) -> None:
        self._draft = draft
        state = draft.state
        if state.recipe is None or state.rules is None:
            raise ConfigError("the board was not placed yet; place it first")
        self.recipe, self.rules, self.open = deepcopy(state.recipe), deepcopy(state.rules), list(state.open)
        self.read = draft.read()
        self._answers = self.read.answers
        self._before = state.recipe, state.rules, state.open, self.read.parts
        self.sized: list[NamedPackage] = []
        """Rows whose size a person said, where it was a guess or another one."""
        self._left: dict[str, str] = {}
        """Components that rows have left, and what those are called now; empty if they are not inspected any more."""
        self._dropped: frozenset[str] = frozenset()
        self._component_of: dict[str, str] = {}
        self._kinds = _kinds(draft, self.read)
        self._sizes = {name: spec.size for name, spec in read_recipe(draft.recipe).components.items()}

    def row(self, said: NamedPackage) -> None:
        """Take what was said of one row."""
        places = self._kinds.get((said.package, said.value), [])
        if not places:
            raise ConfigError(f"the placement file has no part of package '{said.package}' and value '{said.value}'")
        inspected = [place for place in places if place.component]
        before = inspected[0].component if inspected else None
        names, words = [place.refdes for place in places], self._answers.not_inspected
        if said.component is None:
            if before is not None:
                self._say(not_inspected=(*words, *(name for name in names if name not in words)))
                self._left[before] = ""
            return
        if not inspected:
            self._say(not_inspected=tuple(word for word in words if word not in names))
        if before != said.component:
            self._map(said, before)
        self._size(said, before)

    def _say(self, **more: Any) -> None:
        self._answers = self._answers.model_copy(update=more)

    def _map(self, said: NamedPackage, before: str | None) -> None:
        assert said.component is not None
        new = said.component
        self.recipe["components"].setdefault(new, {})
        entry = NamedParts(package=said.package, value=said.value, component=new)
        own = (said.package, said.value, None)
        others = [one for one in self._answers.packages if (one.package, one.value, one.refdes) != own]
        self._say(packages=(entry, *others))
        if new not in self.rules["components"]:
            self.rules["components"][new] = {"count": "1", **self._inspects(before, new)}
        if before is not None:
            self._left[before] = new

    def _inspects(self, before: str | None, new: str) -> dict[str, str]:
        """Return which expert looks first at a new component: that of what it was before, or one that compares."""
        known = None if before is None else self._board().components.get(before)
        inspect = {"inspect": FIRST_EXPERT if known is None else known.root.expert}
        return inspect if known is not None and not known.references else {**inspect, "reference": new}

    def _board(self) -> rules.Rules:
        return rules.of_bytes(self._draft.rules, text_of(self.rules).encode())

    def _drop_unused(self) -> None:
        inspected = {part.component for part in self.read.parts if part.side == Side(self._draft.state.side)} - {""}
        if not inspected:
            raise ConfigError("no part would be inspected any more; leave the tick in at least one row")
        self._dropped = frozenset(self._left.keys() - inspected)
        for component in self._dropped:
            self.recipe["components"].pop(component, None)
            self.rules["components"].pop(component, None)
        self.open = [word for word in self.open if word not in self._dropped]

    def _size(self, said: NamedPackage, before: str | None) -> None:
        assert said.component is not None
        if self._sizes.get(before or said.component) != said.size or {before, said.component} & {*self.open}:
            self.sized.append(said)
        if self._sizes.get(said.component) != said.size:
            self._sizes[said.component] = said.size
            self.recipe["components"][said.component]["size"] = [f"{side:.8g}" for side in said.size]
        self.open = [word for word in self.open if word != said.component]

    def finish(self) -> None:
        """Drop components that no part has any more, write counts, and prove both texts; raises ConfigError."""
        self.read = self._draft.read(said=self._answers)
        self._drop_unused()
        layout = lay_out(parse_recipe(self._draft.recipe, text_of(self.recipe).encode()), self.read.parts)
        first = next(iter(layout.units), "")
        counts = Counter(site.component for site in layout.sites if site.unit == first)
        for name, count in counts.items():
            if "count" in self.rules["components"].get(name, ()):
                self.rules["components"][name]["count"] = str(count)
        board = self._board()
        layout.check(board.components, board.board)
        self._component_of = {place.refdes: "" for places in self._kinds.values() for place in places}
        self._component_of |= {site.refdes: site.component for site in layout.sites}

    @property
    def changes(self) -> bool:
        """Whether anything is otherwise than it was."""
        return (self.recipe, self.rules, tuple(self.open), self.read.parts) != self._before

    def photographs(self) -> tuple[dict[str, str], list[Path]]:
        """Return moves of photographs whose part is renamed, and those that go; raises ConfigError for a clash."""
        moves, gone = {}, []
        listed = crops(self._draft)
        for crop in (crop for component in self._left for crop in listed.get(component, ())):
            words = crop.name.split("-")
            names = ("-".join(words[:end]) for end in range(len(words) - 1, 0, -1))
            part = next((name for name in names if name in self._component_of), None)
            stays = "" if crop.component in self._dropped else crop.component
            now = self._component_of[part] or stays if part is not None else stays or self._left[crop.component]
            if not now:
                gone.append(self._draft.photos / crop.path)
            elif now != crop.component:
                moves[f"photos/{crop.path}"] = f"photos/{now}{crop.path.removeprefix(crop.component)}"
        there = Counter(moves.values())
        if taken := [after for after in there if there[after] > 1 or (self._draft.folder / after).exists()]:
            raise ConfigError(f"{taken[0]} would be two pictures; rename one of them")
        return moves, gone
