"""People at the station sign in with a badge, or with their name and a PIN, and are otherwise holders of keys.

Badges and PINs are short, so a slow hash is kept of them (scrypt, RFC 7914), and the gate lets nobody try many. Whoever
has a copy of the database can find PINs out by trying; keys with 256 random bits cannot be found.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, cast, func, select, update

from coe.errors import ConfigError
from coe.serve.database.hourly import Window
from coe.serve.database.keys import PREFIX, Key, is_valid
from coe.serve.database.row_types import found, records
from coe.serve.database.tables import api_key, board, call, recipe, verification
from coe.serve.enums import CallKind, Outcome

PIN = re.compile(r"[0-9]{4,12}")
LEAST_BADGE = 6
"""The fewest characters of a badge: it alone says who somebody is."""


def badge_hash(badge: str) -> str:
    """Return the hash under which a badge is kept; it takes some 50 ms, so that many tries take long."""
    return _slow(badge, "coe badge")


def pin_hash(name: str, pin: str) -> str:
    """Return the hash under which the PIN of a name is kept."""
    return _slow(pin, f"coe pin {name}")


def _slow(secret: str, salt: str) -> str:
    return hashlib.scrypt(secret.encode(), salt=salt.encode(), n=2**14, r=8, p=1, dklen=32).hex()


def check(badge: str, pin: str) -> None:
    """Raise ConfigError for a badge or a PIN that is too short, or that looks like something else."""
    if badge and (len(badge) < LEAST_BADGE or badge.startswith(PREFIX) or not badge.isprintable()):
        raise ConfigError(
            f"a badge has at least {LEAST_BADGE} visible characters, and does not begin with {PREFIX} as keys do"
        )
    if pin and not PIN.fullmatch(pin):
        raise ConfigError("a PIN has 4 to 12 digits")


def set_secrets(connection: Connection, name: str, badge: str, pin: str, now_us: int) -> bool:
    """Let the holder of a valid key sign in with a badge and a PIN, "" for none; False if there is no such holder.

    Raises ConfigError for a badge that somebody else has.
    """
    hashes = {"badge_hash": badge_hash(badge) if badge else None, "pin_hash": pin_hash(name, pin) if pin else None}
    taken = select(api_key.c.name).where(api_key.c.badge_hash == hashes["badge_hash"], api_key.c.name != name)
    if badge and (other := connection.scalar(taken)) is not None:
        raise ConfigError(f"'{other}' has this badge, or had it; take another one")
    changed = connection.execute(update(api_key).where(api_key.c.name == name, is_valid(now_us)).values(hashes))
    return changed.rowcount == 1


def of_badge(connection: Connection, hash: str, now_us: int) -> Key | None:
    """Return whose badge has a hash, if that person's key is valid now, or None."""
    return found(Key, connection.execute(select(api_key).where(api_key.c.badge_hash == hash, is_valid(now_us))))


def of_pin(connection: Connection, name: str, hash: str, now_us: int) -> Key | None:
    """Return who has a name and a PIN with a hash, if that person's key is valid now, or None."""
    query = select(api_key).where(api_key.c.name == name, api_key.c.pin_hash == hash, is_valid(now_us))
    return found(Key, connection.execute(query))


@dataclass(frozen=True, slots=True)
class PersonFigures:
    """What a person answered within a window: calls by outcome, and answers that another person corrected later.

    Of `seeded` known defects that were shown blindly, `recognised` were no false calls to this person.
    """

    name: str
    answers: int
    confirmed: int
    false_calls: int
    accepted: int
    corrected: int
    seeded: int
    recognised: int


def figures(connection: Connection, window: Window) -> Sequence[PersonFigures]:
    """Return the figures of each person who answered calls within a window, in the order of their names."""
    later = verification.alias()

    def number(condition: Any) -> Any:
        return func.coalesce(func.sum(cast(condition, Integer)), 0)

    is_seeded = call.c.kind == CallKind.SEEDED
    query = (
        select(
            verification.c.verified_by.label("name"),
            func.count().label("answers"),
            *(
                number(condition).label(name)
                for name, condition in {
                    "confirmed": verification.c.outcome == Outcome.CONFIRMED,
                    "false_calls": verification.c.outcome == Outcome.FALSE_CALL,
                    "accepted": verification.c.outcome == Outcome.ACCEPTED,
                    "corrected": later.c.verified_by != verification.c.verified_by,
                    "seeded": is_seeded,
                    "recognised": is_seeded & (verification.c.outcome != Outcome.FALSE_CALL),
                }.items()
            ),
        )
        .join(call, call.c.id == verification.c.call_id)
        .outerjoin(later, later.c.supersedes == verification.c.id)
        .where(verification.c.verified_us >= window.start_us, verification.c.verified_us < window.end_us)
        .group_by(verification.c.verified_by)
        .order_by(verification.c.verified_by)
    )
    if window.recipe:
        query = query.join(board, board.c.id == call.c.board_id).join(recipe, recipe.c.id == board.c.recipe_id)
        query = query.where(recipe.c.name == window.recipe)
    return records(PersonFigures, connection.execute(query))
