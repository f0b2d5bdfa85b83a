"""A folder that fills is a feeder: each picture counts once it is whole, and each board is handed in once.

It goes the way of every feeder, inside of the gate. Before a board is handed in, a note says which pictures it takes;
after a kill the database says of each note whether its board was accepted: then its pictures only have to be moved,
else they are handed in as if nothing had been.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from coe.errors import CoeError, ConfigError, ImageError, LateImage, UnsupportedImage, list_few, sentence_of
from coe.helpers.files import FolderLock, write_atomically
from coe.helpers.strict_model import of_json
from coe.helpers.timely import in_time
from coe.pictures.decoding import decode
from coe.pictures.filling import FillingFolder, Listing, QuietBoards, WatchedFolder
from coe.pictures.finding import image_at, serial_in
from coe.pictures.folder import EntryKind, FolderEntry
from coe.pictures.label_folders import Components
from coe.pictures.photographs import Photograph
from coe.pictures.picture_file import FileStamp, PictureFile
from coe.pictures.picture_names import goes_with_pictures
from coe.serve.database import recipe_versions
from coe.serve.database.connecting import DatabaseError
from coe.serve.enums import FaultKind
from coe.serve.gate.board_routes import hand_in
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import JsonBody
from coe.serve.gate.problems import Problem, ProblemKind, problem_of
from coe.serve.gate.upload_routes import discard_views, keep_view
from coe.serve.recipe_content import RecipeContent
from coe.serve.request import BoardRequest
from coe.serve.service_config import FolderSection

NOTES = "folders"  # the folder of the notes in that of the service
AGAIN_S = 10.0  # after this time a board that was refused is handed in again
CHECKED_AT_A_TIME = 64
_LEAST_PAUSE_S = 0.2
_TOLD = 5  # how many troubles a fault names; the others it counts


async def feed_folders(gate: Gate) -> None:
    """Hand in what comes into the folders of the config, as long as this runs."""
    feeders = [FolderFeeder(gate, name, section) for name, section in gate.config.folders.items()]
    await asyncio.gather(*(feeder.run() for feeder in feeders))


class FolderFeeder:
    """Hands in the boards of one folder, by the same way as a client of the gate."""

    def __init__(
        self, gate: Gate, name: str, section: FolderSection, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._gate, self._name, self._section, self._now_s = gate, name, section, now_s
        self._folder = self._unseen()
        self._taken = TakenPictures(gate, gate.config.data / NOTES / name, self._folder.watched)
        self._items: dict[str, Photograph | None] = {}
        self._files: dict[str, PictureFile] = {}
        """The pictures that are whole, as they lie there."""
        self._boards: dict[FolderGroup, FolderBoard] = {}
        self._asked: FolderRecipe | None = None
        self._lock: FolderLock | None = None
        self._troubles: dict[str, str] = {}
        self._unmoved: dict[str, str] = {}
        self._told: str | None = None

    async def run(self) -> None:
        """Feed as long as this runs; whatever happens is told, and tried again."""
        while True:
            try:
                await self.turn()
            except DatabaseError:  # the gate tells of it
                pass
            except Exception as error:  # whatever it is: without this task nobody would hand in, or notice
                self._troubles[self._name] = sentence_of(error)
            await self.tell()
            await asyncio.sleep(max(self._section.settle_s / 4, _LEAST_PAUSE_S))

    async def turn(self) -> None:
        """Look at the folder once, and hand in what is there; raises DatabaseError, ConfigError."""
        try:
            await self._turn()
        except LateImage as error:
            self._folder.watched.late = error
            self._troubles[self._name] = f"a picture in {self._section.path} {error}"

    async def tell(self) -> None:
        """Raise a fault of what a person has to see to; clear it once there is nothing."""
        lines = [*self._troubles.values(), *self._folder.odd, *self._unmoved.values()]
        text = list_few(lines, _TOLD, "; ")
        if text == self._told:
            return
        self._told = text
        if text:
            await self._gate.note_fault(FaultKind.FOLDER, text, self._name)
        else:
            await self._gate.overcome(FaultKind.FOLDER, self._name)

    async def _turn(self) -> None:
        gate, now = self._gate, self._now_s()
        await gate.keep(self._taken.settle)
        asked = await self._recipe()
        seen = await asyncio.to_thread(self._folder.look, now)
        self._troubles.pop(self._name, None)
        if asked is None or seen is None:
            self._folder.lose_sight(now)
            lacks = f"recipe '{self._section.recipe}' has no active version; activate one"
            self._troubles[self._name] = self._folder.away or lacks
            return
        if not await asyncio.to_thread(self._is_ours):
            self._troubles[self._name] = f"another station takes the pictures of {self._section.path}; stop one of them"
            return
        await asyncio.to_thread(self._take_in, seen, now)
        await asyncio.to_thread(self._put_away)
        waiting = self._folder.ready(now, CHECKED_AT_A_TIME)
        try:
            while waiting:
                await gate.draw(partial(self._check, asked, waiting[0], now))
                del waiting[0]
        finally:
            for name in waiting:
                self._folder.arrivals.put_back(name)
        for group in list(self._ready(asked, now)):
            await self._hand_in(asked, group)
        await gate.keep(self._taken.settle)
        await asyncio.to_thread(self._put_away)

    def close(self) -> None:
        """Let another service take the pictures."""
        if self._lock is not None:
            self._lock.release()

    def _is_ours(self) -> bool:
        """Return whether no other service takes the pictures; where nothing can be locked, nobody can tell."""
        try:
            if self._lock is None or not in_time(self._lock.holds):
                self.close()
                self._lock = in_time(partial(FolderLock.take, self._section.path, wait=False))
        except (OSError, ImageError):
            return True
        return self._lock is not None

    async def _recipe(self) -> FolderRecipe | None:
        active = await self._gate.read(lambda connection: recipe_versions.active(connection, self._section.recipe))
        if active is None:
            return None
        if self._asked is None or self._asked.id != active.id:
            content = RecipeContent.model_validate(active.content)
            known = Components(content.board(active.name).components)
            self._asked = FolderRecipe(active.name, active.id, content, known)
            # What a name says may be something else now.
            self._items, self._files, self._folder = {}, {}, self._unseen(self._folder)
        return self._asked

    def _unseen(self, before: FillingFolder[FolderGroup] | None = None) -> FillingFolder[FolderGroup]:
        """Return the folder, of which no picture was seen; boards stay as quiet as they were `before`."""
        watched = before.watched if before else WatchedFolder(self._section.path, self._section.done)
        boards = before.boards if before else QuietBoards[FolderGroup](self._section.quiet_s)
        return FillingFolder(watched, self._section.settle_s, boards, self._groups)

    def _groups(self, name: str) -> Iterator[FolderGroup]:
        """Yield the board that a picture which is new or changed belongs to; it is not known to be whole."""
        self._forget(name)
        entry = FolderEntry(self._folder.watched.file(name), EntryKind.FILE)
        item = self._items[name] = in_time(partial(self._item, name, entry))
        if item is not None:
            yield FolderGroup.of(item)

    def _take_in(self, seen: Listing, now: float) -> None:
        """Take in a listing: which boards have pictures there, but for notes and what was handed in."""
        for name in {*self._items, *self._folder.listing.odd} - {*seen.files, *seen.odd}:
            self._forget(name)
        self._folder.take_in(seen, now)
        before, self._boards = self._boards, {}
        items = {name: self._items[name] for name in seen.files}
        items |= {name: in_time(partial(self._item, name, entry)) for name, entry in seen.odd.items()}
        for name, item in items.items():
            if item is not None and not (name in seen.files and self._taken.holds(name, seen.files[name].stamp)):
                group = FolderGroup.of(item)
                board = self._boards.setdefault(group, FolderBoard(before[group].again_s if group in before else 0.0))
                board.names.append(name)
        for group in before.keys() - self._boards.keys():
            self._troubles.pop(str(group), None)
            self._folder.boards.close(group)

    def _forget(self, name: str) -> None:
        for known in (self._items, self._files, self._troubles):
            known.pop(name, None)

    def _item(self, name: str, entry: FolderEntry) -> Photograph | None:
        assert self._asked is not None, "a listing is taken in for a recipe"
        if self._asked.content.whole is None:
            return image_at(entry, self._section.path, self._asked.known)
        return None if goes_with_pictures(entry.path) else Photograph(entry.path, "", serial_in(entry.path), name=name)

    def _check(self, asked: FolderRecipe, name: str, now: float) -> None:
        item = self._items.get(name)
        if item is None or item.failure is not None:
            if item is not None and item.failure is not None:
                self._troubles[name] = f"{name} {item.failure.reason}"
            self._folder.holds(name, now)
            return
        file = PictureFile(self._folder.watched.file(name))
        try:
            self._folder.watched.check_end(name)
            decode(file, bits=asked.content.bits, limit_pixels=self._gate.config.limits.pixels)
        except UnsupportedImage as error:  # the line says what a picture is; the gate takes nothing else
            if in_time(partial(_is_no_picture, file)):
                self._folder.holds(name, now)
                self._troubles[name] = f"{name} {error}"
                return
        except LateImage:
            raise
        except ImageError as error:
            if self._folder.holds(name, now, torn=True):
                self._troubles[name] = f"{name} {error}"
            return
        if self._folder.holds(name, now):
            self._files[name] = file

    def _ready(self, asked: FolderRecipe, now: float) -> Iterator[FolderGroup]:
        """Yield the boards that are to be handed in now.

        A picture that stays torn, is an upload under way, or cannot be used, holds its board, because nobody has seen
        its part; but not where the recipe names all parts: then the part is REVIEW.
        """
        listing, parts = self._folder.listing, asked.content.parts
        for group, board in self._boards.items():
            whole = [name for name in board.names if name in self._files]
            unseen = [name for name in board.names if name not in self._files]
            coming = [name for name in unseen if name in listing.files and not listing.files[name].unfinished]
            if now < board.again_s or not whole or any(name not in self._troubles for name in coming):
                continue
            items = [item for item in map(self._items.get, whole) if item]
            if not (asked.is_complete(group, items) or self._folder.boards.is_quiet(group, now)):
                continue
            if not unseen or parts:
                yield group
            else:
                self._troubles.setdefault(unseen[0], f"{unseen[0]} is not whole, and holds {group}")

    async def _hand_in(self, asked: FolderRecipe, group: FolderGroup) -> None:
        """Hand a board in; what is refused is told, and tried again."""
        gate, board, key = self._gate, self._boards[group], f"{self._name}-{secrets.token_hex(16)}"
        names = [name for name in board.names if name in self._files]
        stamps = {name: self._folder.listing.files[name].stamp for name in names}
        self._troubles.pop(str(group), None)
        try:
            data, by_view = asked.request(group, {name: item for name in names if (item := self._items[name])})
            body = JsonBody(data, of_json(data, BoardRequest))
            await gate.keep(partial(self._taken.note, key, stamps))
            for view, name in by_view.items():
                read = partial(self._files[name].read, gate.config.limits.body)
                await keep_view(gate, key, view, await gate.keep(partial(in_time, read)))
            await hand_in(gate, f"folder {self._name}", key, body)
        except (Problem, CoeError, OSError) as error:
            board.again_s = self._now_s() + AGAIN_S
            if isinstance(error, ImageError):  # of a file that is not what was looked at
                for name in names:
                    del self._files[name]
                    self._folder.arrivals.put_back(name)
            if isinstance(error, LateImage):
                raise
            problem = problem_of(error)
            if problem.kind not in (ProblemKind.DRAINING, ProblemKind.BUSY):  # those wait, as every feeder does
                self._troubles[str(group)] = f"{group}: {problem.detail}; {problem.way_out}"

    def _put_away(self) -> None:
        self._unmoved = self._taken.put_away(self._folder.listing)


def _is_no_picture(file: PictureFile) -> bool:
    try:
        return file.header()[1] is None
    except ImageError:  # it has just been replaced
        return False


_WHOLE = "board"  # the name of the view that shows a whole board


class TakenPictures:
    """The pictures of boards that are handed in, by the board's key, with notes in a folder. One thread at a time."""

    def __init__(self, gate: Gate, folder: Path, watched: WatchedFolder) -> None:
        self._gate, self._folder, self._watched = gate, folder, watched
        self._recalled = False
        self._noted: dict[str, dict[str, FileStamp]] = {}
        self._accepted: dict[str, dict[str, FileStamp]] = {}

    def note(self, key: str, pictures: Mapping[str, FileStamp]) -> None:
        """Note which pictures a board takes that is about to be handed in; raises DiskFull, NotWritten or OSError."""
        self._noted[key] = dict(pictures)
        self._folder.mkdir(parents=True, exist_ok=True)
        files = {name: [stamp.bytes, stamp.modified_ns] for name, stamp in pictures.items()}
        write_atomically(self._path(key), [json.dumps(files)])

    def settle(self) -> None:
        """Forget notes of boards that were not accepted; raises DatabaseError, ConfigError for a broken note."""
        if not self._recalled:
            self._noted = {path.stem: _read(path) for path in self._folder.glob("*.json")}
            self._recalled = True
        for key, pictures in list(self._noted.items()):
            # In one step: what was given up while the database did not answer may go on at this moment.
            if discard_views(self._gate, key):
                self._path(key).unlink(missing_ok=True)
            else:
                self._accepted[key] = pictures
            self._noted.pop(key, None)

    def holds(self, name: str, stamp: FileStamp) -> bool:
        """Return whether a picture, as it lies there, is one of these."""
        return any(pictures.get(name) == stamp for pictures in [*self._noted.values(), *self._accepted.values()])

    def put_away(self, listing: Listing) -> dict[str, str]:
        """Move the pictures of boards that were accepted; return why not, by their names. Raises LateImage."""
        troubles: dict[str, str] = {}
        for key, pictures in list(self._accepted.items()):
            for name, stamp in list(pictures.items()):
                try:
                    if self._is_moved(listing, name, stamp):
                        del pictures[name]
                except LateImage:
                    raise
                except (OSError, ImageError) as error:
                    troubles[name] = f"{name} was submitted, and cannot be moved: {sentence_of(error)}"
            if not pictures:
                self._path(key).unlink(missing_ok=True)
                del self._accepted[key]
        return troubles

    def _is_moved(self, listing: Listing, name: str, stamp: FileStamp) -> bool:
        """Move a picture; return whether it was moved, now or before, or another took its place."""
        seen = listing.files.get(name)
        if seen is None:  # it was moved before a kill, or its share is away
            return in_time(partial(self._watched.is_put_away, name, stamp))
        return seen.stamp != stamp or in_time(partial(self._watched.put_away, name, stamp))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _read(path: Path) -> dict[str, FileStamp]:
    try:
        pictures = json.loads(path.read_text(encoding="utf-8"))
        return {name: FileStamp(*map(int, stamp)) for name, stamp in pictures.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}), and names pictures that must not be submitted twice: if board "
            f"'{path.stem}' was accepted, move its pictures away; then remove the file"
        ) from None


@dataclass(frozen=True, slots=True)
class FolderGroup:
    """Which pictures are one board: those of a serial; a picture that names neither serial nor place is one alone."""

    serial: str
    alone: str = ""

    @classmethod
    def of(cls, item: Photograph) -> FolderGroup:
        """Return that of a picture."""
        return cls(item.serial, "" if item.serial or item.refdes else item.name)

    def __str__(self) -> str:
        return self.alone or f"board '{self.serial}'"


@dataclass(slots=True)
class FolderBoard:
    """The pictures of a board that lie in the folder, and until when it is let alone."""

    again_s: float = 0.0
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FolderRecipe:
    """The recipe whose boards the pictures are."""

    name: str
    id: int
    content: RecipeContent
    known: Components

    def request(self, group: FolderGroup, items: Mapping[str, Photograph]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the request of a board, and the pictures' names by view; raises ConfigError for wrong pictures."""
        asked: dict[str, Any] = {"recipe": self.name, "serial": group.serial}
        if self.content.whole is not None:
            names = list(items)
            if len(names) > 1:
                raise ConfigError(f"{names[0]} and {names[1]} have the same serial; remove one of them")
            side = self.content.whole.layout.recipe.side.value
            return asked | {"whole": _WHOLE, "side": side}, {_WHOLE: names[0]}
        by_view: dict[str, str] = {}
        for name, item in items.items():
            view = item.refdes or item.component
            if by_view.setdefault(view, name) != name:
                raise ConfigError(f"{by_view[view]} and {name} show the same part; remove one of them")
        shown = {view: {"refdes": view, "component": items[name].component} for view, name in by_view.items()}
        return asked | {"views": shown}, by_view

    def is_complete(self, group: FolderGroup, items: Sequence[Photograph]) -> bool:
        """Return whether no picture of a board can be missing."""
        parts = self.content.parts
        return bool(self.content.whole or group.alone or (parts and {item.refdes for item in items} >= parts.keys()))
