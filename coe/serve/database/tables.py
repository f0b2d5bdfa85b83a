"""The tables. A change here comes with a migration; a test compares the two.

Columns that end in `_us` are times, UTC microseconds. Enumerations are stored as their words. All tables stand in one
file, because they refer to each other.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Enum,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from coe.core import Verdict
from coe.placement.placement_file import Side
from coe.serve.enums import (
    ActivationState,
    BoardState,
    CallKind,
    CallReason,
    EventKind,
    FaultKind,
    Outcome,
    Process,
    RepairOutcome,
    Role,
    Subject,
    TrialState,
)

NAME = 200
"""The most characters of a name that somebody gives: a serial, a refdes, a key's name."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_WHOLE = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only keys of its own integer type, which has 64 bits."""


def _id() -> Column[int]:
    return Column("id", _WHOLE, primary_key=True, autoincrement=True)


def _word(enumeration: type[StrEnum]) -> Enum:
    """Return the type of a column with the words of an enumeration; a new word needs no migration."""
    return Enum(
        enumeration,
        values_callable=lambda members: [member.value for member in members],
        native_enum=False,
        length=40,
        create_constraint=False,
    )


def _table(name: str, *columns: Any) -> Table:
    # A key is never used twice, so that an event's id keeps its meaning for a client that was away.
    return Table(name, metadata, *columns, sqlite_autoincrement=any(column.name == "id" for column in columns))


recipe = _table(
    "recipe",
    _id(),
    Column("name", String(NAME), nullable=False),
    Column("version", Integer, nullable=False),
    Column("content", JSON, nullable=False, comment="coe.serve.recipe_content.RecipeContent"),
    Column("digest", String(64), nullable=False, comment="SHA-256 of the content; one content is one version"),
    Column("created_us", BigInteger, nullable=False),
    Column("created_by", String(NAME), nullable=False),
    UniqueConstraint("name", "version"),
    UniqueConstraint("name", "digest"),
)

activation = _table(
    "activation",
    _id(),
    Column("recipe_id", ForeignKey(recipe.c.id), nullable=False, index=True),
    Column("state", _word(ActivationState), nullable=False),
    Column("asked_us", BigInteger, nullable=False),
    Column("asked_by", String(NAME), nullable=False),
    Column("answered_us", BigInteger),
    Column("reason", Text, nullable=False, default="", comment="why it failed"),
)

confirmation = _table(
    "confirmation",
    _id(),
    Column("recipe_id", ForeignKey(recipe.c.id), nullable=False),
    Column("confirmed_us", BigInteger, nullable=False),
    Column("confirmed_by", String(NAME), nullable=False),
    Column("picture_sha256", String(64), nullable=False, comment="of the picture over which the crops were looked at"),
    Column("reading", String(64), nullable=False, default="", comment="where they lay: coe.serve.recipe_content"),
    UniqueConstraint("recipe_id", "reading"),
)

board = _table(
    "board",
    _id(),
    Column("key", String(NAME), nullable=False, unique=True, comment="the feeder's own name of this handing in"),
    Column("digest", String(64), nullable=False, comment="SHA-256 of the request: the same key and body again"),
    Column("recipe_id", ForeignKey(recipe.c.id), nullable=False, index=True),
    Column("state", _word(BoardState), nullable=False),
    Column("serial", String(NAME), nullable=False, default=""),
    Column("panel", String(NAME), nullable=False, default=""),
    Column("side", _word(Side), nullable=False),
    Column("work_order", String(NAME), nullable=False, default=""),
    Column("request", JSON, nullable=False, comment="coe.serve.request.BoardRequest"),
    Column("pass_number", Integer, nullable=False, comment="1 is the first decision of this product, serial and side"),
    Column("fed_by", String(NAME), nullable=False),
    Column("accepted_us", BigInteger, nullable=False),
    Column("due_us", BigInteger),
    Column("started_us", BigInteger),
    Column("attempts", Integer, nullable=False, default=0, comment="how often the line began it"),
    Column("endangered_us", BigInteger, comment="when it was said that it will probably be late"),
    Column("decided_us", BigInteger),
    Column("verified_us", BigInteger),
    Column("verdict", _word(Verdict)),
    Column("late", Boolean, nullable=False, default=False),
    Column("components", Integer, nullable=False, default=0, comment="how many there are to judge, or were judged"),
    Column("calls", Integer, nullable=False, default=0, comment="how many of them are not OK"),
    Column("revision", Integer, nullable=False, default=0, comment="0 is the decision; amendments count up"),
    Column("findings", LargeBinary, comment="OK findings, see coe.serve.database.findings"),
    Column("reason", Text, nullable=False, default="", comment="why the whole board is REVIEW, or was aborted"),
    Column("swept_us", BigInteger, comment="when retention found that no picture of it is left"),
    Index("ix_board_state_id", "state", "id"),
    Index("ix_board_decided_us", "decided_us"),
    Index("ix_board_unswept", "swept_us", "state", "verdict", "decided_us"),
    Index("ix_board_serial_side", "serial", "side"),
    Index("ix_board_accepted_us", "accepted_us", "id"),
    Index("ix_board_verdict_accepted_us", "verdict", "accepted_us", "id"),
    Index("ix_board_state_accepted_us", "state", "accepted_us", "id"),
)

unit_serial = _table(
    "unit_serial",
    Column("serial", String(NAME), primary_key=True),
    Column("board_id", ForeignKey(board.c.id), primary_key=True, autoincrement=False, comment="the panel of the unit"),
)

view = _table(
    "view",
    _id(),
    Column("board_key", String(NAME), nullable=False, comment="views come before their board"),
    Column("name", String(NAME), nullable=False),
    Column("file", String(80), nullable=False, unique=True, comment="generated; relative to the folder of pictures"),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("pixels", BigInteger, nullable=False, comment="width x height by its header"),
    Column("received_us", BigInteger, nullable=False, index=True),
    Column("removed_us", BigInteger, comment="when retention removed the file"),
    UniqueConstraint("board_key", "name"),
)

call = _table(
    "call",
    _id(),
    Column("board_id", ForeignKey(board.c.id), index=True, comment="None for a seeded defect"),
    Column("kind", _word(CallKind), nullable=False),
    Column("refdes", String(NAME), nullable=False),
    Column("component", String(NAME), nullable=False),
    Column("view_id", ForeignKey(view.c.id), index=True),
    Column("place", JSON, comment="where the component lies in the view; None if the view shows it alone"),
    Column("verdict", _word(Verdict), nullable=False),
    Column("reason", _word(CallReason), nullable=False),
    Column("detail", Text, nullable=False, default="", comment="a sentence for people"),
    Column("expert", String(NAME), nullable=False, default="", comment="whose finding decided"),
    Column("label", String(NAME), nullable=False, default=""),
    Column("score", Float),
    Column("late", Boolean, nullable=False, default=False),
    Column("findings", JSON, nullable=False, comment="the way through the experts, in the order of the rules"),
    Column("truth", String(NAME), nullable=False, default="", comment="of a seeded defect: its label"),
    Column("face", JSON, comment="what a person sees of a blind audit, see coe.serve.database.blind.Face"),
    Column("shown_board_id", ForeignKey(board.c.id), index=True, comment="of a seeded defect: whose it seems to be"),
    Column("opened_us", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False, default=0, comment="counts up at each change; the ETag"),
    Column("verification_id", _WHOLE, comment="the newest verification; None while the call is open"),
    Column("claimed_by", String(NAME), nullable=False, default=""),
    Column("claimed_session", String(64), nullable=False, default="", comment="empty for a program with a key"),
    Column("claimed_until_us", BigInteger, nullable=False, default=0),
    UniqueConstraint("board_id", "refdes"),
    Index("ix_call_open", "verification_id", "id"),
    Index("ix_call_lender", "component", "kind", "reason", "id"),
    Index("ix_call_opened_us", "opened_us"),
    Index("ix_call_kind_board_id", "kind", "board_id"),
)

verification = _table(
    "verification",
    _id(),
    Column("call_id", ForeignKey(call.c.id), nullable=False, index=True),
    Column("supersedes", ForeignKey("verification.id"), unique=True, comment="the verification that it corrects"),
    Column("outcome", _word(Outcome), nullable=False),
    Column("label", String(NAME), nullable=False, default="", comment="what the person sees, if not the call's label"),
    Column("note", Text, nullable=False, default=""),
    Column("verified_us", BigInteger, nullable=False, index=True),
    Column("verified_by", String(NAME), nullable=False),
)

repair = _table(
    "repair",
    _id(),
    Column("call_id", ForeignKey(call.c.id), nullable=False, index=True),
    Column("supersedes", ForeignKey("repair.id"), unique=True, comment="the word that it corrects"),
    Column("outcome", _word(RepairOutcome), nullable=False),
    Column("note", Text, nullable=False, default=""),
    Column("repaired_us", BigInteger, nullable=False, index=True),
    Column("repaired_by", String(NAME), nullable=False),
)

trial = _table(
    "trial",
    _id(),
    Column("recipe", String(NAME), nullable=False, comment="the name of the recipe whose boards are judged again"),
    Column("content", JSON, nullable=False, comment="what is tried: coe.serve.recipe_content.RecipeContent"),
    Column("asked", JSON, nullable=False, comment="coe.serve.trial_counts.TrialRequest"),
    Column("state", _word(TrialState), nullable=False),
    Column("asked_us", BigInteger, nullable=False),
    Column("asked_by", String(NAME), nullable=False),
    Column("newest_id", BigInteger, nullable=False, comment="the newest board when it was asked for"),
    Column("counts", JSON, nullable=False, comment="coe.serve.trial_counts.TrialCounts"),
    Column("ended_us", BigInteger),
    Column("reason", Text, nullable=False, default="", comment="why it failed"),
)

escape = _table(
    "escape",
    _id(),
    Column("board_id", ForeignKey(board.c.id), index=True, comment="None if the serial is not known here"),
    Column("serial", String(NAME), nullable=False),
    Column("refdes", String(NAME), nullable=False, default=""),
    Column("component", String(NAME), nullable=False, default=""),
    Column("label", String(NAME), nullable=False, default=""),
    Column("found_at", String(NAME), nullable=False, default="", comment="the later test, as ICT or customer"),
    Column("note", Text, nullable=False, default=""),
    Column("reported_us", BigInteger, nullable=False, index=True),
    Column("reported_by", String(NAME), nullable=False),
)

fault = _table(
    "fault",
    _id(),
    Column("process", _word(Process), nullable=False),
    Column("kind", _word(FaultKind), nullable=False),
    Column("about", String(NAME), nullable=False, default="", comment="the recipe, sink, view ... that it concerns"),
    Column("message", Text, nullable=False),
    Column("board_id", ForeignKey(board.c.id)),
    Column("raised_us", BigInteger, nullable=False, index=True),
    Column("seen_us", BigInteger, nullable=False, comment="the last time that it happened"),
    Column("times", Integer, nullable=False, default=1),
    Column("cleared_us", BigInteger, index=True),
    Column("cleared_by", String(NAME), nullable=False, default=""),
)

state_change = _table(
    "state_change",
    _id(),
    Column("subject", _word(Subject), nullable=False),
    Column("state", String(40), nullable=False, comment="a word of coe.serve.enums.Intake or LineState"),
    Column("changed_us", BigInteger, nullable=False, index=True),
    Column("changed_by", String(NAME), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Index("ix_state_change_subject_id", "subject", "id"),
)

heartbeat = _table(
    "heartbeat",
    Column("process", _word(Process), primary_key=True),
    Column("pid", Integer, nullable=False),
    Column("beat_us", BigInteger, nullable=False),
    Column("facts", JSON, nullable=False, comment="what the pages show of the process"),
    Column("experts", JSON, comment="what the pages show of the line's experts, see coe.serve.worker.line_watchers"),
)

decision_count = _table(
    "decision_count",
    Column("verdict", _word(Verdict), primary_key=True),
    Column("boards", BigInteger, nullable=False, comment="decided so; no amendment changes it, so it never falls"),
)

tally = _table(
    "tally",
    Column("hour_us", BigInteger, primary_key=True, autoincrement=False, comment="the beginning of the hour"),
    Column("recipe_id", ForeignKey(recipe.c.id), primary_key=True, autoincrement=False),
    Column("component", String(NAME), primary_key=True),
    Column("expert", String(NAME), primary_key=True),
    Column("label", String(NAME), primary_key=True),
    Column("findings", BigInteger, nullable=False, comment="on first passes"),
    Column("called", BigInteger, nullable=False, comment="how many of them belong to components that are not OK"),
    Column("score_sum", Float, nullable=False),
    Column("score_square_sum", Float, nullable=False),
)

board_count = _table(
    "board_count",
    Column("hour_us", BigInteger, primary_key=True, autoincrement=False, comment="the hour of the decision"),
    Column("recipe_id", ForeignKey(recipe.c.id), primary_key=True, autoincrement=False),
    Column("first_pass", Boolean, primary_key=True),
    Column("verdict", _word(Verdict), primary_key=True),
    Column("boards", BigInteger, nullable=False),
    Column("clean", BigInteger, nullable=False, comment="OK as a whole, and without a call"),
    Column("late", BigInteger, nullable=False),
    Column("verified", BigInteger, nullable=False),
    Column("good", BigInteger, nullable=False, comment="verified, without a confirmed defect"),
)

call_count = _table(
    "call_count",
    Column("hour_us", BigInteger, primary_key=True, autoincrement=False, comment="the hour of the board's decision"),
    Column("recipe_id", ForeignKey(recipe.c.id), primary_key=True, autoincrement=False),
    Column("component", String(NAME), primary_key=True),
    Column("expert", String(NAME), primary_key=True),
    Column("label", String(NAME), primary_key=True, comment="that of the person if there is one"),
    Column("kind", _word(CallKind), primary_key=True),
    Column("outcome", String(40), primary_key=True, comment="coe.serve.enums.Outcome; empty while open"),
    Column("calls", BigInteger, nullable=False, comment="on first passes"),
)

api_key = _table(
    "api_key",
    _id(),
    Column("name", String(NAME), nullable=False, unique=True),
    Column("role", _word(Role), nullable=False),
    Column("hash", String(64), nullable=False, unique=True, comment="SHA-256 of the key, which has 256 random bits"),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger),
    Column("revoked_us", BigInteger),
    Column("badge_hash", String(64), comment="of the badge of a person, who then needs no key"),
    Column("pin_hash", String(64), comment="of the PIN of a person, with the name"),
    Index("ix_api_key_badge_hash", "badge_hash", unique=True),
)

session = _table(
    "session",
    Column("name", String(64), primary_key=True, comment="the signed hash of its cookie"),
    Column("key_id", ForeignKey(api_key.c.id), nullable=False),
    Column("ends_us", BigInteger, nullable=False, index=True),
)

event = _table(
    "event",
    _id(),
    Column("uuid", String(36), nullable=False, unique=True),
    Column("kind", _word(EventKind), nullable=False),
    Column("board_id", ForeignKey(board.c.id), index=True),
    Column("happened_us", BigInteger, nullable=False, index=True),
    Column("body", JSON, nullable=False),
)

sink = _table(
    "sink",
    Column("name", String(NAME), primary_key=True),
    Column("added_us", BigInteger, nullable=False),
)

outbox = _table(
    "outbox",
    Column("sink", ForeignKey(sink.c.name), primary_key=True),
    Column("event_id", ForeignKey(event.c.id), primary_key=True, autoincrement=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column(
        "next_try_us", BigInteger, nullable=False, comment="not read: a clock that was set back would make it wrong"
    ),
    Column("error", Text, nullable=False, default="", comment="what the last attempt met"),
)

audit = _table(
    "audit",
    _id(),
    Column("acted_us", BigInteger, nullable=False),
    Column("actor", String(NAME), nullable=False),
    Column("action", String(NAME), nullable=False),
    Column("about", String(NAME), nullable=False),
    Column("detail", JSON, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
)

APPEND_ONLY = (verification, audit, confirmation, recipe, escape, repair)
"""Tables whose rows are never changed and never removed; triggers refuse it (`coe.serve.database.migration`)."""
