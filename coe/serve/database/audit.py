"""Who did what: a chain of hashes. Each entry's hash covers the entry before, so every later change is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from coe.serve.database import row_types
from coe.serve.database.row_types import NAME, in_turn, listed, values_of
from coe.serve.database.tables import AuditEntry, audit

BEGINNING = "0" * 64  # the hash before the first entry
_TOGETHER = 1000


def append(
    connection: Connection, actor: str, action: str, about: str, *, now_us: int, detail: Mapping[str, Any] | None = None
) -> AuditEntry:
    """Append a deed to the chain, in the transaction that does it; `detail` is JSON without fractions."""
    in_turn(connection, audit)
    last = connection.scalar(select(audit.c.hash).order_by(audit.c.id.desc()).limit(1))
    row = {
        "acted_us": now_us,
        "actor": actor[:NAME],
        "action": action[:NAME],
        "about": about[:NAME],
        "detail": dict(detail or {}),
        "previous": last or BEGINNING,
    }
    row["hash"] = hash_of(row)
    return row_types.add(connection, AuditEntry, row)


def newest(connection: Connection, *, limit: int = 100) -> list[AuditEntry]:
    """Return entries, the newest first."""
    return listed(connection, AuditEntry, newest=True, limit=limit)


@dataclass(frozen=True, slots=True)
class Proof:
    """How many entries are sound, the last hash (kept elsewhere, it proves that none was cut), the first broken id."""

    sound: int
    last_hash: str
    broken_id: int | None


def prove(connection: Connection, *, newest: int | None = None) -> Proof:
    """Check the whole chain, or only its newest entries, which begin with the hash of the entry before them."""
    sound, last, last_id = 0, BEGINNING, 0
    if newest is not None:
        before = select(audit.c.hash, audit.c.id).order_by(audit.c.id.desc()).offset(newest).limit(1)
        if (entry_before := connection.execute(before).one_or_none()) is not None:
            last, last_id = entry_before.hash, entry_before.id
    while True:
        entries = listed(connection, AuditEntry, audit.c.id > last_id, limit=_TOGETHER)
        for entry in entries:
            if entry.previous != last or entry.hash != hash_of(values_of(entry)):
                return Proof(sound, last, entry.id)
            sound, last, last_id = sound + 1, entry.hash, entry.id
        if not entries:
            return Proof(sound, last, None)


def hash_of(row: Mapping[str, Any]) -> str:
    """Return the hash of an entry, from its columns and the hash of the entry before it."""
    facts = [row[name] for name in ("previous", "acted_us", "actor", "action", "about", "detail")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
