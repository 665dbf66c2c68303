"""All tables of the first version. What was released never changes here: a change is a further migration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _task(nullable: bool = False) -> sa.Column[str]:
    return sa.Column("task_id", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=nullable)


def _run() -> sa.Column[str]:
    return sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


def upgrade() -> None:
    """Make them."""
    _sandboxes()
    _tasks()
    _steps_and_requests()
    op.create_table(
        "definitions",
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("definition", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("removed_at", sa.Float),
        sa.PrimaryKeyConstraint("type", "version"),
    )
    op.execute(
        """
CREATE VIEW user_usage AS
SELECT t.user_id AS user_id,
       date(r.started_at, 'unixepoch') AS day,
       count(*) AS requests,
       sum(r.input_tokens) AS input_tokens,
       sum(r.output_tokens) AS output_tokens,
       sum(r.cache_creation_tokens) AS cache_creation_tokens,
       sum(r.cache_read_tokens) AS cache_read_tokens,
       sum(r.cost_usd) AS cost_usd,
       sum(r.cost_usd IS NULL) AS unpriced_requests
  FROM model_requests r JOIN tasks t ON t.id = r.task_id
 GROUP BY t.user_id, day
"""
    )


def _sandboxes() -> None:
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("checksum", sa.Integer, nullable=False),
    )
    op.create_index("sandboxes_by_state", "sandboxes", ["state", "ended_at"])
    live = sa.text("name != '' AND state IN ('intended', 'adopted')")
    op.create_index("sandboxes_live_name", "sandboxes", ["instance", "name"], unique=True, sqlite_where=live)


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("workspace", sa.Text, nullable=False),
        sa.Column("sandbox_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("ended_by", sa.Text),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("setup", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("tasks_by_time", "tasks", ["created_at"])
    op.create_index("tasks_by_user", "tasks", ["user_id", "created_at"])
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        _task(),
        sa.Column("parent_run_id", sa.Text),
        sa.Column("tool_call_id", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("label", sa.Text),
        sa.Column("definition", sa.Text),
        sa.Column("definition_version", sa.Integer),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("status", sa.Text),
        sa.Column("ended_by", sa.Text),
        sa.Column("steps", sa.Integer),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
    )
    op.create_index("runs_of_task", "runs", ["task_id"])
    op.create_table(
        "events",
        _task(),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "seq"),
        sqlite_with_rowid=False,
    )


def _steps_and_requests() -> None:
    op.create_table(
        "steps",
        _run(),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("messages", sa.Text, nullable=False),
        sa.Column("usage", sa.Text, nullable=False),
        sa.Column("state", sa.Text),
        sa.Column("finished_at", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "model_requests",
        sa.Column("id", sa.Text, primary_key=True),
        _task(),
        _run(),
        sa.Column("step", sa.Integer),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("ended", sa.Text, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cache_creation_tokens", sa.Integer, nullable=False),
        sa.Column("cache_read_tokens", sa.Integer, nullable=False),
        sa.Column("estimated", sa.Integer, nullable=False),
        sa.Column("cost_usd", sa.Float),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
    )
    op.create_index("model_requests_of_task", "model_requests", ["task_id", "started_at"])
    op.create_index("model_requests_of_run", "model_requests", ["run_id"])
