"""Alembic runs this file for each migration; `coe.serve.database.migration` gives it the connection."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
