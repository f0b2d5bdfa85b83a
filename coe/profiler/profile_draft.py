"""A profile under way: each figure is saved as soon as it is measured, so an interrupted run can go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from coe.errors import ConfigError
from coe.inspector import profile
from coe.inspector.profile import BoardProfile, Fingerprint, KindProfile, Profile
from coe.profiler import profile_file
from coe.profiler.measure import Target


class Draft:
    """The profile of this machine so far: from an interrupted run, from an earlier profile, or empty.

    The profile's own file is written only at the end; until then a partial file lies in the same folder.
    """

    def __init__(self, place: Path, say: Callable[[str], None]) -> None:
        self._place = place
        self._partial = place.with_name(f".{place.stem}.partial.json")
        self.profile = self._start(say)

    def __repr__(self) -> str:
        return f"<Draft of {self._place}, {len(self.profile.kinds)} kinds>"

    def knows(self, kind: str, target: Target) -> bool:
        """Tell whether a kind was measured on a target."""
        return self.profile.kind(kind, target.device, target.threads, target.precision) is not None

    def add_kind(self, measured: KindProfile) -> None:
        """Add a measured kind; it replaces an earlier measurement on the same target."""
        others = tuple(kind for kind in self.profile.kinds if _key(kind) != _key(measured))
        self._keep(self.profile.model_copy(update={"kinds": (*others, measured)}))

    def scaling(self, device: str, threads: int) -> tuple[float, ...]:
        """Return the joint speed of 1, 2, ... executors, in units of one executor; empty if it was not measured."""
        return self.profile.scaling.get(device, {}).get(threads, ())

    def add_scaling(self, device: str, threads: int, speeds: tuple[float, ...]) -> None:
        """Add the joint speed of 1, 2, ... executors of `threads` threads, in units of one executor."""
        measured = {**self.profile.scaling.get(device, {}), threads: speeds}
        self._keep(self.profile.model_copy(update={"scaling": {**self.profile.scaling, device: measured}}))

    def finish(self, board: BoardProfile) -> Profile:
        """Add a board's part and write the profile, whole or not at all; raises NotWritten."""
        done = self.profile.model_copy(update={"made": _now(), "boards": {**self.profile.boards, board.board: board}})
        profile_file.save(done, self._place)
        self._partial.unlink(missing_ok=True)
        return done

    def _keep(self, changed: Profile) -> None:
        self.profile = changed
        profile_file.save(changed, self._partial)

    def _start(self, say: Callable[[str], None]) -> Profile:
        now = Fingerprint.here()
        for path in (self._partial, self._place):
            if not path.exists():
                continue
            try:
                stored = profile.load(path)
            except ConfigError as error:
                say(f"{error}; a new profile will replace it")
                continue
            if changed := stored.machine.changes(now):
                say(
                    f"the profile at {path} is of another machine ({'; '.join(changed)}); a new profile will replace it"
                )
                continue
            if path == self._partial:
                say("going on with a run that was interrupted")
            return stored
        return Profile(made=_now(), machine=now)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _key(kind: KindProfile) -> tuple[str | int, ...]:
    return kind.kind, kind.device, kind.threads, kind.backend, kind.precision
