"""The boards of a running line: which of them take images, and which only finish images that were accepted before.

Law: an image is inspected by the rules that its board had when the line accepted it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import NamedTuple

from coe.board.rules import Rules
from coe.board.union import Member
from coe.core import Expert
from coe.errors import ConfigError, did_you_mean
from coe.inspector.asked_boards import AskedBoard
from coe.inspector.weights_used import findings_facts
from coe.pictures.image_source import ReferenceSource
from coe.runtime.admission import give_back
from coe.scheduler.events import RulesChanged
from coe.store.manifest import Manifest


class Names:
    """Names that mean the same as long as a line runs: what was loaded under a name fits it later, too."""

    def __init__(self) -> None:
        self._names: dict[Hashable, str] = {}
        self._taken: set[str] = set()

    def of(self, thing: Hashable, *wished: str) -> str:
        """Return the name of a thing: at first the first wished name that nothing else has, or a numbered name."""
        if thing not in self._names:
            numbered = (f"{wished[-1]}#{number}" for number in count(2))
            name = next(name for name in chain(wished, numbered) if name not in self._taken)
            self._names[thing] = name
            self._taken.add(name)
        return self._names[thing]


@dataclass(frozen=True, slots=True)
class LineBoard:
    """A board as it lies on the disk: its rules, its experts' manifests by weights, and its references by component.

    On a line it is a version of a board, with a `key` and with `experts` under the line's names for them, by the names
    that its rules have. `first_bytes` is, by component, the size of the input of its first expert; pictures of
    components that are `given` come with a reference. `mix` is 0 when no more images of it come.
    """

    asked: AskedBoard
    rules: Rules
    manifests: Mapping[str, Manifest]
    references: Mapping[str, ReferenceSource]
    reference_digests: Mapping[str, str]
    first_bytes: Mapping[str, int]
    given: frozenset[str]
    mix: float
    key: str = ""
    experts: Mapping[str, Expert] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the board, as results have it."""
        return self.rules.board

    @property
    def member(self) -> Member:
        """The board as a part of the union of all boards."""
        return Member(self.key, self.rules, self.experts, self.mix)


class Register:
    """Gives experts, weights and versions of boards the names under which a line knows them."""

    def __init__(self, precision: str) -> None:
        self._precision = precision
        self._experts, self._weights, self._boards = Names(), Names(), Names()
        self.places: dict[str, str] = {}
        """By the name of weights on the line: their place in the store."""
        self.manifests: dict[str, Manifest] = {}
        """By the name of weights on the line."""
        self.experts: dict[str, Expert] = {}
        """All that were enrolled, by their id on the line."""

    def enrol(self, board: LineBoard, *, alone: bool) -> LineBoard:
        """Return a board under the names of the line; `alone` says that it is the only board that the line opens with.

        Experts of one name that say the same of every picture are one expert, whatever boards they are of.
        """
        experts = {name: self._enrolled(board, name, expert) for name, expert in board.rules.experts.items()}
        version = (
            board.rules.board,
            board.rules.digest,
            tuple((expert.id, expert.weights) for expert in experts.values()),
            tuple(sorted(board.reference_digests.items())),
        )
        return replace(board, key=self._boards.of(version, *([""] if alone else []), board.name), experts=experts)

    def _enrolled(self, board: LineBoard, name: str, expert: Expert) -> Expert:
        manifest = board.manifests[expert.weights]
        expert = manifest.fit(expert)
        facts = findings_facts(manifest, self._precision)
        weights = self._weights.of((expert.weights, facts), expert.weights)
        self.places[weights], self.manifests[weights] = expert.weights, manifest
        # Whatever else the board file says of it: its weights may lie elsewhere, and still be the same.
        says = replace(expert, weights="", ignore_under={}), tuple(sorted(expert.ignore_under.items()))
        id = self._experts.of((says, facts), name, f"{board.name}/{name}")
        self.experts[id] = replace(expert, id=id, weights=weights)
        return self.experts[id]


class _State(NamedTuple):
    """The boards that take images, those that finish theirs, and the rules that hold after that."""

    present: tuple[LineBoard, ...]
    ending: tuple[LineBoard, ...] = ()
    then: RulesChanged | None = None


class LineBoards:
    """The boards that take images now, and the images without a result of each board. Any thread may call.

    `tell` gets the rules that hold once no image of an earlier version of a board is under way; without it, the boards
    stay as they are. An image is known by a token of its caller.
    """

    def __init__(self, boards: Sequence[LineBoard], tell: Callable[[RulesChanged], None] | None) -> None:
        # Reentrant, because only such a lock can be given back by whoever does not know whether it is taken.
        self._lock = threading.RLock()
        self._tell = tell
        self._images: dict[str, set[Hashable]] = {board.key: set() for board in boards}
        self._state = _State(tuple(boards))

    @property
    def present(self) -> tuple[LineBoard, ...]:
        """The boards that take images."""
        return self._state.present

    def named(self, name: str) -> LineBoard:
        """Return the board of a name, or the only board for ""; raises ConfigError with what there is."""
        boards = self.present
        if not name and len(boards) == 1:
            return boards[0]
        for board in boards:
            if name in (board.name, str(board.asked.source)):
                return board
        names = [board.name for board in boards]
        if not name:
            raise ConfigError(f"this line inspects several boards; state the board of the image: board= one of {names}")
        raise ConfigError(f"board '{name}' is not on this line{did_you_mean(name, names)}")

    def accept(self, name: str, image: Hashable) -> LineBoard | None:
        """Accept an image of a board, by its name in results; None if the board has left the line."""
        with self._lock:
            board = next((board for board in self.present if board.name == name), None)
            if board is not None:
                self._images[board.key].add(image)
            return board

    def answered(self, image: Hashable) -> None:
        """Note that an image that `accept` let in has its result, or was not taken in; a second call does nothing."""
        with self._lock:
            for images in self._images.values():
                images.discard(image)
            self._let_go()

    def recover(self) -> None:
        """Give back the lock, after an exception that may have struck anywhere in `accept` or `switch`."""
        give_back(self._lock)

    def ending_after(self, boards: Sequence[LineBoard]) -> list[LineBoard]:
        """Return the versions of boards that would only finish their images if these boards took all further images."""
        keys = {board.key for board in boards}
        with self._lock:
            known = {board.key: board for board in (*self.present, *self._state.ending)}
            return [replace(board, mix=0.0) for key, board in known.items() if key not in keys]

    def switch(self, boards: Sequence[LineBoard], now: RulesChanged, then: RulesChanged) -> None:
        """Let these boards take all further images; `then` holds once no image of another is under way, `now` until it.

        No other thread may have called `switch` since `ending_after`.
        """
        assert self._tell is not None, "these boards stay as they are"
        ending = tuple(self.ending_after(boards))
        with self._lock:
            for board in boards:
                self._images.setdefault(board.key, set())
            is_over = not any(self._images.get(board.key) for board in ending)
            told = then if is_over else now
            state = _State(tuple(boards)) if is_over else _State(tuple(boards), ending, then)
            try:
                # The rules are told before an image by them can come.
                self._tell(told)
                self._state = state
            except BaseException:  # an interrupt: nobody knows what was done, and twice is no harm
                self._tell(told)
                self._state = state
                raise
            self._forget(ending if is_over else ())

    def _let_go(self) -> None:
        present, ending, then = self._state
        if self._tell is not None and then is not None and not any(self._images.get(board.key) for board in ending):
            self._tell(then)
            self._state = _State(present)
            self._forget(ending)

    def _forget(self, ended: Sequence[LineBoard]) -> None:
        for board in ended:
            self._images.pop(board.key, None)
