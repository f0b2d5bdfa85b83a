"""The first schema.

The file is long because it states each table as it was then: a migration must not follow later changes of the code.
"""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.triggers import append_only

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make all tables."""
    _what_stands_alone()
    _recipes_and_boards()
    _what_boards_have()
    _figures_and_events()
    for table in ("verification", "audit"):
        for statement in append_only(op.get_context().dialect.name, table):
            op.execute(statement)


def _what_stands_alone() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=40), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger()),
        sa.Column("revoked_us", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.UniqueConstraint("hash", name="uq_api_key_hash"),
        sa.UniqueConstraint("name", name="uq_api_key_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("acted_us", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("about", sa.String(length=200), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sa.UniqueConstraint("hash", name="uq_audit_hash"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "heartbeat",
        sa.Column("process", sa.String(length=40), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("beat_us", sa.BigInteger(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("process", name="pk_heartbeat"),
    )
    op.create_table(
        "sink",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("added_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_sink"),
    )
    op.create_table(
        "state_change",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("subject", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("changed_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.String(length=200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_state_change"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_state_change_changed_us", "state_change", ["changed_us"])
    op.create_index("ix_state_change_subject_id", "state_change", ["subject", "id"])
    op.create_table(
        "view",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("board_key", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("file", sa.String(length=80), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("pixels", sa.BigInteger(), nullable=False),
        sa.Column("received_us", sa.BigInteger(), nullable=False),
        sa.Column("removed_us", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_view"),
        sa.UniqueConstraint("board_key", "name", name="uq_view_board_key_name"),
        sa.UniqueConstraint("file", name="uq_view_file"),
        sqlite_autoincrement=True,
    )


def _recipes_and_boards() -> None:
    op.create_table(
        "recipe",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_recipe"),
        sa.UniqueConstraint("name", "digest", name="uq_recipe_name_digest"),
        sa.UniqueConstraint("name", "version", name="uq_recipe_name_version"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "activation",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("recipe_id", WHOLE, nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("asked_us", sa.BigInteger(), nullable=False),
        sa.Column("asked_by", sa.String(length=200), nullable=False),
        sa.Column("answered_us", sa.BigInteger()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipe.id"], name="fk_activation_recipe_id"),
        sa.PrimaryKeyConstraint("id", name="pk_activation"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_activation_recipe_id", "activation", ["recipe_id"])
    op.create_table(
        "board",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("recipe_id", WHOLE, nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("serial", sa.String(length=200), nullable=False),
        sa.Column("panel", sa.String(length=200), nullable=False),
        sa.Column("side", sa.String(length=40), nullable=False),
        sa.Column("work_order", sa.String(length=200), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("pass_number", sa.Integer(), nullable=False),
        sa.Column("fed_by", sa.String(length=200), nullable=False),
        sa.Column("accepted_us", sa.BigInteger(), nullable=False),
        sa.Column("due_us", sa.BigInteger()),
        sa.Column("started_us", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("endangered_us", sa.BigInteger()),
        sa.Column("decided_us", sa.BigInteger()),
        sa.Column("verified_us", sa.BigInteger()),
        sa.Column("verdict", sa.String(length=40)),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("components", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("findings", sa.LargeBinary()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipe.id"], name="fk_board_recipe_id"),
        sa.PrimaryKeyConstraint("id", name="pk_board"),
        sa.UniqueConstraint("key", name="uq_board_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_board_verdict", "board", ["verdict"])
    op.create_index("ix_board_decided_us", "board", ["decided_us"])
    op.create_index("ix_board_recipe_id", "board", ["recipe_id"])
    op.create_index("ix_board_serial_side", "board", ["serial", "side"])
    op.create_index("ix_board_state_id", "board", ["state", "id"])


def _what_boards_have() -> None:
    op.create_table(
        "call",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("board_id", WHOLE),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("refdes", sa.String(length=200), nullable=False),
        sa.Column("component", sa.String(length=200), nullable=False),
        sa.Column("view_id", WHOLE),
        sa.Column("place", sa.JSON()),
        sa.Column("verdict", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("expert", sa.String(length=200), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("score", sa.Float()),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("truth", sa.String(length=200), nullable=False),
        sa.Column("opened_us", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("verification_id", WHOLE),
        sa.Column("claimed_by", sa.String(length=200), nullable=False),
        sa.Column("claimed_until_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["board.id"], name="fk_call_board_id"),
        sa.ForeignKeyConstraint(["view_id"], ["view.id"], name="fk_call_view_id"),
        sa.PrimaryKeyConstraint("id", name="pk_call"),
        sa.UniqueConstraint("board_id", "refdes", name="uq_call_board_id_refdes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_call_board_id", "call", ["board_id"])
    op.create_index("ix_call_component_opened_us", "call", ["component", "opened_us"])
    op.create_index("ix_call_open", "call", ["verification_id", "id"])
    op.create_index("ix_call_opened_us", "call", ["opened_us"])
    op.create_index("ix_call_view_id", "call", ["view_id"])
    op.create_table(
        "verification",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("call_id", WHOLE, nullable=False),
        sa.Column("supersedes", WHOLE),
        sa.Column("outcome", sa.String(length=40), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("verified_us", sa.BigInteger(), nullable=False),
        sa.Column("verified_by", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_verification_call_id"),
        sa.ForeignKeyConstraint(["supersedes"], ["verification.id"], name="fk_verification_supersedes"),
        sa.PrimaryKeyConstraint("id", name="pk_verification"),
        sa.UniqueConstraint("supersedes", name="uq_verification_supersedes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_verification_call_id", "verification", ["call_id"])
    op.create_index("ix_verification_verified_us", "verification", ["verified_us"])
    op.create_table(
        "escape",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("board_id", WHOLE),
        sa.Column("serial", sa.String(length=200), nullable=False),
        sa.Column("refdes", sa.String(length=200), nullable=False),
        sa.Column("component", sa.String(length=200), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("found_at", sa.String(length=200), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("reported_us", sa.BigInteger(), nullable=False),
        sa.Column("reported_by", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["board.id"], name="fk_escape_board_id"),
        sa.PrimaryKeyConstraint("id", name="pk_escape"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_escape_board_id", "escape", ["board_id"])
    op.create_index("ix_escape_reported_us", "escape", ["reported_us"])
    op.create_table(
        "fault",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("process", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("about", sa.String(length=200), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("board_id", WHOLE),
        sa.Column("raised_us", sa.BigInteger(), nullable=False),
        sa.Column("seen_us", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.Column("cleared_us", sa.BigInteger()),
        sa.Column("cleared_by", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["board.id"], name="fk_fault_board_id"),
        sa.PrimaryKeyConstraint("id", name="pk_fault"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_fault_cleared_us", "fault", ["cleared_us"])
    op.create_index("ix_fault_raised_us", "fault", ["raised_us"])


def _figures_and_events() -> None:
    op.create_table(
        "tally",
        sa.Column("hour_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("recipe_id", WHOLE, autoincrement=False, nullable=False),
        sa.Column("component", sa.String(length=200), nullable=False),
        sa.Column("expert", sa.String(length=200), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("findings", sa.BigInteger(), nullable=False),
        sa.Column("called", sa.BigInteger(), nullable=False),
        sa.Column("score_sum", sa.Float(), nullable=False),
        sa.Column("score_square_sum", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipe.id"], name="fk_tally_recipe_id"),
        sa.PrimaryKeyConstraint("hour_us", "recipe_id", "component", "expert", "label", name="pk_tally"),
    )
    op.create_table(
        "event",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("board_id", WHOLE),
        sa.Column("happened_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["board.id"], name="fk_event_board_id"),
        sa.PrimaryKeyConstraint("id", name="pk_event"),
        sa.UniqueConstraint("uuid", name="uq_event_uuid"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_event_board_id", "event", ["board_id"])
    op.create_index("ix_event_happened_us", "event", ["happened_us"])
    op.create_table(
        "outbox",
        sa.Column("sink", sa.String(length=200), nullable=False),
        sa.Column("event_id", WHOLE, autoincrement=False, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_us", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["event_id"], ["event.id"], name="fk_outbox_event_id"),
        sa.ForeignKeyConstraint(["sink"], ["sink.name"], name="fk_outbox_sink"),
        sa.PrimaryKeyConstraint("sink", "event_id", name="pk_outbox"),
    )
