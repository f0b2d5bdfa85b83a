"""Where placements lay that people confirmed, and escapes as their names are written now."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.migration import append_only, never_replaced
from coe.serve.database.recipe_versions import reading_of
from coe.spelling import composed

revision = "0010"
down_revision = "0009"

_NAMES = ("serial", "refdes", "component", "label", "found_at")
_KEYS = ("id = NEW.id", "recipe_id = NEW.recipe_id AND reading = NEW.reading")


def upgrade() -> None:
    """Add a column, with what this version reads; rows that are never changed are, once."""
    connection, is_sqlite = op.get_bind(), op.get_context().dialect.name == "sqlite"
    switch = [] if is_sqlite else ['ALTER TABLE "escape" {} TRIGGER USER', "ALTER TABLE confirmation {} TRIGGER USER"]
    with op.batch_alter_table("confirmation", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.add_column(sa.Column("reading", sa.String(64), nullable=False, server_default=""))
        table.drop_constraint("uq_confirmation_recipe_id", type_="unique")
        table.create_unique_constraint("uq_confirmation_recipe_id_reading", ["recipe_id", "reading"])
    for statement in switch or ["DROP TRIGGER escape_no_update"]:
        op.execute(statement.format("DISABLE"))
    recipes = sa.table("recipe", sa.column("id"), sa.column("content", sa.JSON))
    words = sa.table("confirmation", sa.column("recipe_id"), sa.column("reading"))
    for id, content in connection.execute(sa.select(recipes).where(recipes.c.id.in_(sa.select(words.c.recipe_id)))):
        connection.execute(sa.update(words).where(words.c.recipe_id == id).values(reading=reading_of(content)))
    escapes = sa.table("escape", *map(sa.column, ("id", *_NAMES)))
    for row in connection.execute(sa.select(escapes)).all():
        names = {name: composed(getattr(row, name).strip()) for name in _NAMES}
        connection.execute(sa.update(escapes).where(escapes.c.id == row.id).values(names))
    for statement in switch or [
        append_only("sqlite", "escape")[0],
        *append_only("sqlite", "confirmation"),
        *never_replaced("sqlite", "confirmation", *_KEYS),
    ]:
        op.execute(statement.format("ENABLE"))
