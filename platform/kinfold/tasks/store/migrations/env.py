"""Run by alembic for every upgrade: one transaction, so that a crash leaves the old version or the new one."""

from __future__ import annotations

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
