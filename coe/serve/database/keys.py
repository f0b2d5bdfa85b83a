"""Keys of the API, badges and PINs. A key itself is shown once, when it is made; the database holds its hash.

A key has 256 random bits, so a plain hash is enough. People sign in with a badge, or with name and PIN, of which a slow
hash is kept (scrypt, RFC 7914); the gate lets nobody try many, but a copy of the database can be searched. The hash of
a badge ends with that of its form: a scan of another form is most often the serial of a board.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, delete, insert, or_, select

from coe.errors import ConfigError
from coe.helpers.visible import is_visible
from coe.serve.database import row_types
from coe.serve.database.row_types import NAME, change, found, in_turn, listed, only, records
from coe.serve.database.tables import Key, api_key, session
from coe.serve.enums import Process, Role

PREFIX = "coe_"
LEAST_BADGE = 6  # the fewest characters of a badge: it alone says who somebody is
WORK = 2**14  # the cost of the slow hash; a database holds hashes of one cost alone
_FORM = 8  # how many characters of the hash of a badge say of which form it is


def generate() -> str:
    """Return a new key."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    """Return the hash under which a key is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def add(connection: Connection, name: str, role: Role, key: str, *, now_us: int, expires_us: int | None = None) -> Key:
    """Add a key; raises ConfigError for a name that is none, was used before, or is that of a process."""
    if not 0 < len(name) <= NAME or name != name.strip() or not is_visible(name) or "\n" in name:
        raise ConfigError(
            f"{name[:NAME]!r} is not a name: give 1 to {NAME} visible characters without spaces around them"
        )
    if name in set(Process):
        raise ConfigError(f"'{name}' is a process of the service; choose another name for the key")
    if connection.execute(select(api_key.c.id).where(api_key.c.name == name)).first() is not None:
        raise ConfigError(f"there is a key '{name}' already; choose another name")
    row = {"name": name, "role": role, "hash": hash_of(key), "created_us": now_us, "expires_us": expires_us}
    return row_types.add(connection, Key, row)


def holder(connection: Connection, key: str, now_us: int) -> Key | None:
    """Return what is known of a key that is valid now, or None."""
    return found(Key, connection.execute(_HOLDER, {"of_hash": hash_of(key), "at_us": now_us}))


def begin_session(connection: Connection, key: Key, name: str, *, now_us: int, ends_us: int) -> bool:
    """Add a session in which a key was given, and return whether it is new; those that are over go."""
    in_turn(connection, session)
    connection.execute(delete(session).where(session.c.ends_us <= now_us))
    is_new = connection.scalar(select(session.c.name).where(session.c.name == name)) is None
    if is_new:
        connection.execute(insert(session).values(name=name, key_id=key.id, ends_us=ends_us))
    return is_new


def of_session(connection: Connection, name: str, now_us: int, longest_us: Callable[[Role], int]) -> Key | None:
    """Return the key of a session if both are valid; one longer than its role allows is of a clock set back."""
    query = select(api_key, session.c.ends_us).join(session, session.c.key_id == api_key.c.id)
    query = query.where(session.c.name == name, session.c.ends_us > now_us, is_valid(now_us))
    if (row := connection.execute(query).one_or_none()) is None:
        return None
    fields = dict(row._mapping)
    lasts_us, key = fields.pop("ends_us") - now_us, Key(**fields)
    return key if lasts_us <= longest_us(key.role) else None


def by_id(connection: Connection, id: int, now_us: int) -> Key | None:
    """Return what is known of the key of an id, if it is valid now, or None."""
    return only(connection, Key, api_key.c.id == id, is_valid(now_us))


def end_session(connection: Connection, name: str) -> None:
    """End a session, if there is such a one."""
    connection.execute(delete(session).where(session.c.name == name))


def all_keys(connection: Connection) -> list[Key]:
    """Return all keys, in the order of their names."""
    return records(Key, connection.execute(select(api_key).order_by(api_key.c.name)))


def any_valid(connection: Connection, now_us: int) -> bool:
    """Return whether there is a key that is valid now."""
    return connection.execute(select(api_key.c.id).where(is_valid(now_us)).limit(1)).first() is not None


def revoke(connection: Connection, name: str, now_us: int) -> bool:
    """End a key; False if there is no key of this name, or if it was ended before."""
    return change(connection, api_key, api_key.c.name == name, api_key.c.revoked_us.is_(None), revoked_us=now_us)


def is_valid(now_us: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Return the condition that a key was not ended, and is not over."""
    return api_key.c.revoked_us.is_(None) & or_(api_key.c.expires_us.is_(None), api_key.c.expires_us > now_us)


# Each request asks this; to build it takes longer than to run it.
_HOLDER = select(api_key).where(api_key.c.hash == bindparam("of_hash"), is_valid(bindparam("at_us", type_=BigInteger)))


def badge_hash(badge: str) -> str:
    """Return the hash under which a badge is kept; it takes some 50 ms, so that many tries take long."""
    return _slow(badge, "coe badge")[:-_FORM] + _form(badge)


def _form(badge: str) -> str:
    kinds = {"0" if letter.isdigit() else "A" if letter.isalpha() else "-" for letter in badge}
    return "=" + hash_of(f"{len(badge)} {sorted(kinds)}")[: _FORM - 1]


def is_like_badge(connection: Connection, text: str, now_us: int) -> bool:
    """Return whether a text has as many characters, of the same kinds, as the badge of somebody."""
    of_form = api_key.c.badge_hash.endswith(_form(text))
    return bool(listed(connection, Key, of_form, is_valid(now_us), limit=1))


def pin_hash(name: str, pin: str) -> str:
    """Return the hash under which the PIN of a name is kept."""
    return _slow(pin, f"coe pin {name}")


def _slow(secret: str, salt: str) -> str:
    return hashlib.scrypt(secret.encode(), salt=salt.encode(), n=WORK, r=8, p=1, dklen=32).hex()


def check_secrets(badge: str, pin: str) -> None:
    """Raise ConfigError for a badge or a PIN that is too short, or that looks like something else."""
    if badge and (len(badge) < LEAST_BADGE or badge.startswith(PREFIX) or not badge.isprintable()):
        raise ConfigError(
            f"a badge needs at least {LEAST_BADGE} visible characters, and must not begin with {PREFIX} like keys"
        )
    if pin and not re.fullmatch("[0-9]{4,12}", pin):
        raise ConfigError("a PIN must have 4 to 12 digits")


def set_secrets(connection: Connection, name: str, badge: str, pin: str, now_us: int) -> bool:
    """Set badge and PIN ("" for none) of a valid key; False if there is none, ConfigError for another's badge."""
    hashes = {"badge_hash": badge_hash(badge) if badge else None, "pin_hash": pin_hash(name, pin) if pin else None}
    taken = select(api_key.c.name).where(_has_badge(hashes["badge_hash"] or ""), api_key.c.name != name)
    if badge and (other := connection.scalar(taken)) is not None:
        raise ConfigError(f"'{other}' has or had this badge; use another one")
    return change(connection, api_key, api_key.c.name == name, is_valid(now_us), **hashes)


def _has_badge(hash: str) -> ColumnElement[bool]:
    return api_key.c.badge_hash.startswith(hash[:-_FORM])


def of_badge(connection: Connection, hash: str, now_us: int) -> Key | None:
    """Return whose badge has a hash, if that person's key is valid now, or None."""
    return only(connection, Key, _has_badge(hash), is_valid(now_us))


def of_pin(connection: Connection, name: str, hash: str, now_us: int) -> Key | None:
    """Return who has a name and a PIN with a hash, if that person's key is valid now, or None."""
    return only(connection, Key, api_key.c.name == name, api_key.c.pin_hash == hash, is_valid(now_us))
