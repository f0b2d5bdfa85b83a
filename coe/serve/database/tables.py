"""The tables, and the records that are their rows. A change here comes with a migration; a test compares the two.

Fields that end in `_us` are times, UTC microseconds. Enumerations are stored as their words. A record `New...` is what
somebody gives who adds a row. All tables stand in one file, because they refer to each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.serve import enums
from coe.serve.clock import HOUR_US
from coe.serve.database.row_types import (
    NAME,
    WHOLE,
    Id,
    Is,
    Large,
    Moment,
    NameText,
    Refers,
    Sha256,
    Stored,
    columns_of,
    shown,
    word,
)

Json = Mapping[str, Any]
metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, row: type[Stored], *more: Any) -> sa.Table:
    """Return the table of a record, with further columns and indexes."""
    row.columns = columns_of(row)
    has_id = any(column.name == "id" for column in row.columns)
    # A key is never used twice, so that an event's id keeps its meaning for a client that was away.
    row.table = table = sa.Table(name, metadata, *row.columns, *more, sqlite_autoincrement=has_id)
    if has_id:
        row.of_id = sa.select(*row.columns).where(table.c.id == sa.bindparam("of_id"))
    return table


@dataclass(frozen=True, slots=True)
class Recipe(Stored):
    """A version of a recipe; `content` is JSON, see `coe.serve.recipe_content.RecipeContent`."""

    id: Id
    name: NameText
    version: int
    content: Json
    digest: Annotated[Sha256, "SHA-256 of the content; one content is one version"]
    created_us: Moment
    created_by: NameText


recipe = _table("recipe", Recipe, sa.UniqueConstraint("name", "version"), sa.UniqueConstraint("name", "digest"))


@dataclass(frozen=True, slots=True)
class Activation(Stored):
    """A request to make a version the active version, and its result; `reason` says why it failed."""

    id: Id
    recipe_id: Annotated[int, Refers("recipe"), Is.INDEXED]
    state: enums.ActivationState
    asked_us: Moment
    asked_by: NameText
    answered_us: Moment | None
    reason: str


activation = _table("activation", Activation)


@dataclass(frozen=True, slots=True)
class Confirmation(Stored):
    """Who confirmed the placements of a version, over which picture, and where they lay (`WholeBoard.reading`)."""

    id: Id
    recipe_id: Annotated[int, Refers("recipe")]
    confirmed_us: Moment
    confirmed_by: NameText
    picture_sha256: Annotated[Sha256, "of the picture over which the crops were looked at"]
    reading: Annotated[Sha256, "where they lay: coe.serve.recipe_content"]


confirmation = _table("confirmation", Confirmation, sa.UniqueConstraint("recipe_id", "reading"))


@dataclass(frozen=True, slots=True)
class NewBoard(Stored):
    """A board whose pictures are on the disk; `digest` is that of the request, `request` is JSON."""

    key: Annotated[NameText, Is.UNIQUE, "the feeder's own name of this handing in"]
    digest: Annotated[Sha256, "SHA-256 of the request: the same key and body again"]
    recipe_id: Annotated[int, Refers("recipe"), Is.INDEXED]
    serial: NameText
    panel: NameText
    side: Side
    work_order: NameText
    request: Annotated[Json, "coe.serve.request.BoardRequest"]
    fed_by: NameText
    accepted_us: Moment
    due_us: Moment | None
    components: Annotated[int, "how many there are to judge, or were judged"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Board(NewBoard):
    """A board without its findings."""

    id: Id
    state: enums.BoardState
    pass_number: Annotated[int, "1 is the first decision of this product, serial and side"]
    started_us: Moment | None
    attempts: Annotated[int, "how often the line began it"] = 0
    endangered_us: Annotated[Moment | None, "when it was said that it will probably be late"]
    decided_us: Moment | None
    verified_us: Moment | None
    verdict: Verdict | None
    late: bool = False
    calls: Annotated[int, "how many of its components are not OK"] = 0
    revision: Annotated[int, "0 is the decision; amendments count up"] = 0
    reason: Annotated[str, "why the whole board is REVIEW, or was aborted"] = ""

    @property
    def facts(self) -> dict[str, Any]:
        """What every event about the board says of it, as JSON."""
        renamed = {"board": "id", "recipe": "recipe_id", "pass": "pass_number"}
        return shown(self, "key serial panel side work_order", **renamed)


board = _table(
    "board",
    Board,
    sa.Column("findings", sa.LargeBinary, comment="OK findings, see coe.serve.database.findings"),
    sa.Column("swept_us", sa.BigInteger, comment="when retention found that no picture of it is left"),
    sa.Index("ix_board_state_id", "state", "id"),
    sa.Index("ix_board_unswept", "swept_us", "state", "verdict", "decided_us"),
    sa.Index("ix_board_serial_side", "serial", "side"),
    sa.Index("ix_board_accepted_us", "accepted_us", "id"),
    sa.Index("ix_board_verdict_accepted_us", "verdict", "accepted_us", "id"),
    sa.Index("ix_board_state_accepted_us", "state", "accepted_us", "id"),
)

# All that statistics count of a board, by the hour: they read this index alone, and sort nothing.
HOUR = board.c.decided_us - board.c.decided_us % sa.literal_column(str(HOUR_US))
_COUNTED = "recipe_id pass_number decided_us verdict calls late state"
hourly = sa.Index("ix_board_hourly", HOUR, *(board.c[name] for name in _COUNTED.split()))

unit_serial = sa.Table(
    "unit_serial",
    metadata,
    sa.Column("serial", sa.String(NAME), primary_key=True),
    sa.Column("board_id", sa.ForeignKey(board.c.id), primary_key=True, autoincrement=False, comment="its panel"),
)


@dataclass(frozen=True, slots=True)
class NewView(Stored):
    """A picture that lies under a generated name in the folder of pictures."""

    board_key: Annotated[NameText, "views come before their board"]
    name: NameText
    file: Annotated[str, sa.String(80), Is.UNIQUE, "generated; relative to the folder of pictures"]
    sha256: Sha256
    size_bytes: Large
    pixels: Annotated[Large, "width x height by its header"]
    received_us: Annotated[Moment, Is.INDEXED]


@dataclass(frozen=True, slots=True, kw_only=True)
class View(NewView):
    """A picture; `removed_us` is the time at which its file was removed, None while it is there."""

    id: Id
    removed_us: Moment | None


view = _table("view", View, sa.UniqueConstraint("board_key", "name"))


@dataclass(frozen=True, slots=True)
class NewCall(Stored):
    """A component for the operator's queue."""

    refdes: NameText
    component: NameText
    verdict: Verdict
    reason: enums.CallReason
    view_id: Annotated[int | None, Refers("view"), Is.INDEXED] = None
    place: Annotated[Any, "where the component lies in the view; None if the view shows it alone"] = None
    detail: Annotated[str, "a sentence for people"] = ""
    expert: Annotated[NameText, "whose finding decided"] = ""
    label: NameText = ""
    score: float | None = None
    late: bool = False
    findings: Annotated[Sequence[Json], "the way through the experts, in the order of the rules"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(NewCall):
    """A call; open while `verification_id` is None. `revision` counts up at each change."""

    id: Id
    board_id: Annotated[int, Refers("board"), Is.INDEXED]
    opened_us: Moment
    revision: Annotated[int, "counts up at each change; the ETag"] = 0
    verification_id: Annotated[int | None, WHOLE, "the newest verification; None while the call is open"]
    claimed_by: NameText = ""
    claimed_session: Annotated[Sha256, "empty for a program with a key"] = ""
    claimed_until_us: Moment = 0

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered it."""
        return self.verification_id is None


call = _table(
    "call",
    Call,
    sa.UniqueConstraint("board_id", "refdes"),
    sa.Index("ix_call_open", "verification_id", "id"),
    sa.Index("ix_call_component", "component", "id"),
    sa.Index("ix_call_opened_us", "opened_us"),
)


@dataclass(frozen=True, slots=True)
class NewVerification(Stored):
    """A person's word on a call; `label` is what the person sees, if that is not the label of the call."""

    outcome: enums.Outcome
    verified_us: Annotated[Moment, Is.INDEXED]
    verified_by: NameText
    label: NameText = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(NewVerification):
    """A person's word on a call; `supersedes` is the id of the verification that it corrects."""

    id: Id
    call_id: Annotated[int, Refers("call"), Is.INDEXED]
    supersedes: Annotated[int | None, Refers("verification"), Is.UNIQUE]


verification = _table("verification", Verification)


@dataclass(frozen=True, slots=True)
class NewRepair(Stored):
    """What became of a defect, by a person's word."""

    outcome: enums.RepairOutcome
    repaired_us: Annotated[Moment, Is.INDEXED]
    repaired_by: NameText
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(NewRepair):
    """What became of a defect; `supersedes` is the id of the word that it corrects."""

    id: Id
    call_id: Annotated[int, Refers("call"), Is.INDEXED]
    supersedes: Annotated[int | None, Refers("repair"), Is.UNIQUE]


repair = _table("repair", Repair)


@dataclass(frozen=True, slots=True)
class StoredTrial(Stored):
    """A trial of what is in `content`; `reason` says why it failed."""

    id: Id
    recipe: Annotated[NameText, "the name of the recipe whose boards are judged again"]
    content: Annotated[Json, "what is tried: coe.serve.recipe_content.RecipeContent"]
    asked: Annotated[Json, "coe.serve.trials.TrialRequest"]
    state: enums.TrialState
    asked_us: Moment
    asked_by: NameText
    newest_id: Annotated[Large, "the newest board when it was asked for"]
    counts: Annotated[Json, "coe.serve.trials.TrialCounts, as far as it is"]
    ended_us: Moment | None
    reason: str


trial = _table("trial", StoredTrial)


@dataclass(frozen=True, slots=True)
class NewEscape(Stored):
    """A defect that a later test found; `found_at` is the test, as "ICT"."""

    serial: NameText
    reported_us: Annotated[Moment, Is.INDEXED]
    reported_by: NameText
    refdes: NameText = ""
    component: NameText = ""
    label: NameText = ""
    found_at: NameText = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escape(NewEscape):
    """A reported escape; `board_id` is None if no board of this serial was inspected here."""

    id: Id
    board_id: Annotated[int | None, Refers("board"), Is.INDEXED]


escape = _table("escape", Escape)


@dataclass(frozen=True, slots=True)
class NewFault(Stored):
    """A fault of a process; `about` names the recipe, sink or view that it concerns, `message` is for people."""

    process: enums.Process
    kind: enums.FaultKind
    message: str
    about: NameText = ""
    board_id: Annotated[int | None, Refers("board")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(NewFault):
    """A fault; open while `cleared_us` is None. It happened `times` times, the last time at `seen_us`."""

    id: Id
    raised_us: Annotated[Moment, Is.INDEXED]
    seen_us: Moment
    times: int = 1
    cleared_us: Annotated[Moment | None, Is.INDEXED] = None
    cleared_by: NameText = ""


fault = _table("fault", Fault)


@dataclass(frozen=True, slots=True)
class StateChange(Stored):
    """A change of state; `state` is a word of `Intake` or `LineState`, by the subject."""

    id: Id
    subject: enums.Subject
    state: Annotated[str, sa.String(40)]
    changed_us: Annotated[Moment, Is.INDEXED]
    changed_by: NameText
    reason: str


state_change = _table("state_change", StateChange, sa.Index("ix_state_change_subject_id", "subject", "id"))


@dataclass(frozen=True, slots=True)
class Heartbeat(Stored):
    """The last sign of life of a process; `facts`, and the `experts` of the line, are JSON that the pages show."""

    process: Annotated[enums.Process, Is.KEY]
    pid: int
    beat_us: Moment
    facts: Json
    experts: Annotated[Json | None, "see coe.serve.worker.line_watch"]


heartbeat = _table("heartbeat", Heartbeat)
decision_count = sa.Table(
    "decision_count",
    metadata,
    sa.Column("verdict", word(Verdict), primary_key=True),
    sa.Column("boards", sa.BigInteger, nullable=False, comment="decided so; no amendment changes it"),
)


@dataclass(frozen=True, slots=True)
class Key(Stored):
    """What is known of a key: who holds it, with which role, and until when (None: without end)."""

    id: Id
    name: Annotated[NameText, Is.UNIQUE]
    role: enums.Role
    hash: Annotated[Sha256, Is.UNIQUE, "SHA-256 of the key, which has 256 random bits"]
    created_us: Moment
    expires_us: Moment | None
    revoked_us: Moment | None
    badge_hash: Annotated[Sha256 | None, "of the badge of a person, who then needs no key"] = None
    pin_hash: Annotated[Sha256 | None, "of the PIN of a person, with the name"] = None


api_key = _table("api_key", Key, sa.Index("ix_api_key_badge_hash", "badge_hash", unique=True))
session = sa.Table(
    "session",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True, comment="the signed hash of its cookie"),
    sa.Column("key_id", sa.ForeignKey(api_key.c.id), nullable=False),
    sa.Column("ends_us", sa.BigInteger, nullable=False, index=True),
)


@dataclass(frozen=True, slots=True)
class Event(Stored):
    """An event; ids grow in the order of commits, and the uuid is the same at every delivery."""

    id: Id
    uuid: Annotated[str, sa.String(36), Is.UNIQUE]
    kind: enums.EventKind
    board_id: Annotated[int | None, Refers("board"), Is.INDEXED]
    happened_us: Annotated[Moment, Is.INDEXED]
    body: Json


event = _table("event", Event)
sink = sa.Table(
    "sink",
    metadata,
    sa.Column("name", sa.String(NAME), primary_key=True),
    sa.Column("added_us", sa.BigInteger, nullable=False),
)
outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("sink", sa.ForeignKey(sink.c.name), primary_key=True),
    sa.Column("event_id", sa.ForeignKey(event.c.id), primary_key=True, autoincrement=False),
    sa.Column("attempts", sa.Integer, nullable=False, default=0),
    sa.Column(
        "next_try_us", sa.BigInteger, nullable=False, comment="not read: a clock that was set back would make it wrong"
    ),
    sa.Column("error", sa.Text, nullable=False, default="", comment="what the last attempt met"),
)


@dataclass(frozen=True, slots=True)
class AuditEntry(Stored):
    """A deed: `actor` is the name of a key or of a process, `about` names what it was done to, `detail` is JSON."""

    id: Id
    acted_us: Moment
    actor: NameText
    action: NameText
    about: NameText
    detail: Json
    previous: Sha256
    hash: Annotated[Sha256, Is.UNIQUE]


audit = _table("audit", AuditEntry)
APPEND_ONLY = (verification, audit, confirmation, recipe, escape, repair)  # triggers refuse to change or remove rows
