"""A profile under way: what was measured is kept as soon as it is known, so an interrupted calibration goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from coe.errors import ConfigError
from coe.inspector import fingerprint, profile
from coe.inspector.profile import BoardProfile, KindProfile, Profile
from coe.profiler.target import Target


class Draft:
    """What is known of this very machine: from an interrupted calibration, an earlier profile, or nothing yet.

    The place of the profile itself is written at the end only.
    """

    def __init__(self, place: Path, say: Callable[[str], None]) -> None:
        self._place = place
        self._partial = place.with_name(f".{place.stem}.partial.json")
        self.known = self._found(say)

    def __repr__(self) -> str:
        return f"<Draft of {self._place}, {len(self.known.kinds)} kinds>"

    def knows(self, kind: str, target: Target) -> bool:
        """Tell whether a kind was measured on a target."""
        return any((found.kind, Target.of(found)) == (kind, target) for found in self.known.kinds)

    def add_kind(self, found: KindProfile) -> None:
        """Add a kind, in the place of what was known of it on the same target."""
        measured = (found.kind, Target.of(found))
        others = tuple(kind for kind in self.known.kinds if (kind.kind, Target.of(kind)) != measured)
        self._keep(self.known.model_copy(update={"kinds": (*others, found)}))

    def scaling(self, device: str, threads: int) -> tuple[float, ...]:
        """Return how fast 1, 2, ... executors are together; empty if that was not measured."""
        return self.known.scaling.get(device, {}).get(threads, ())

    def add_scaling(self, device: str, threads: int, speeds: tuple[float, ...]) -> None:
        """Add how fast 1, 2, ... executors of so many threads are together."""
        measured = {**self.known.scaling.get(device, {}), threads: speeds}
        self._keep(self.known.model_copy(update={"scaling": {**self.known.scaling, device: measured}}))

    def finish(self, board: BoardProfile) -> Profile:
        """Add what was found out for a board, and put all into its place, whole; raises NotWritten."""
        done = self.known.model_copy(update={"made": _now(), "boards": {**self.known.boards, board.board: board}})
        profile.save(done, self._place)
        self._partial.unlink(missing_ok=True)
        return done

    def _keep(self, known: Profile) -> None:
        self.known = known
        profile.save(known, self._partial)

    def _found(self, say: Callable[[str], None]) -> Profile:
        now = fingerprint.here()
        for path in (self._partial, self._place):
            if not path.exists():
                continue
            try:
                found = profile.load(path)
            except ConfigError as error:
                say(f"{error}; it is replaced")
                continue
            if changed := fingerprint.differences(found.machine, now):
                say(f"the profile at {path} is of another machine ({'; '.join(changed)}); it is replaced")
                continue
            if path == self._partial:
                say("going on with a calibration that was interrupted")
            return found
        return Profile(made=_now(), machine=now)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
