"""The tables as they are now. `migrations/` says how a file comes to have them; a test says that both agree.

Times are seconds since the epoch (REAL). JSON is text, as pydantic writes it: a column stands beside it only where
something is looked up, compared or summed by it. Rollups (a task's cost, a user's usage) are computed, never stored.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, MetaData, PrimaryKeyConstraint, Table, Text, text

metadata = MetaData()

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("instance", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("record", Text, nullable=False),  # a `SandboxRecord`; the columns are copies of its fields
    Column("checksum", Integer, nullable=False),  # crc32 of `record`: SQLite itself notices no flipped bit in a text
    Index("sandboxes_by_state", "state", "ended_at"),
    Index(
        "sandboxes_live_name",
        "instance",
        "name",
        unique=True,
        sqlite_where=text("name != '' AND state IN ('intended', 'adopted')"),
    ),
)
"""One row a sandbox, also of those that are gone: why one ended is asked after its end."""

tasks = Table(
    "tasks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("workspace", Text, nullable=False),
    Column("sandbox_id", Text, nullable=False),  # no foreign key: the record may be kept elsewhere, or be gone
    Column("status", Text, nullable=False),  # running | completed | aborted | error
    Column("ended_by", Text),
    Column("owner", Text, nullable=False),  # JSON of an `Owner`: a running task of a dead one was interrupted
    Column("setup", Text),  # JSON: all that a resume needs beside the steps (definitions, limits, spec without secrets)
    Column("result", Text),  # JSON of a `TaskResult`
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Index("tasks_by_time", "created_at"),
    Index("tasks_by_user", "user_id", "created_at"),
)
"""One row a parent task."""

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("task_id", Text, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("parent_run_id", Text),
    Column("tool_call_id", Text),  # the parent's `task` call
    Column("kind", Text, nullable=False),  # main | subagent
    Column("label", Text),
    Column("definition", Text),
    Column("definition_version", Integer),
    Column("model", Text, nullable=False),
    Column("status", Text),
    Column("ended_by", Text),
    Column("steps", Integer),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
    Index("runs_of_task", "task_id"),
)
"""One row an agent's loop: who ran for whom. The log keeps its events, this its parentage."""

events = Table(
    "events",
    metadata,
    Column("task_id", Text, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("event", Text, nullable=False),  # JSON, as on the wire
    PrimaryKeyConstraint("task_id", "seq"),
    sqlite_with_rowid=False,
)
"""The log of a task, without gaps. When an event comes here is `tasks/log.py`'s to say."""

steps = Table(
    "steps",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("messages", Text, nullable=False),  # JSON list of the `Message`s behind those that stand from before
    Column("usage", Text, nullable=False),  # JSON of the run's `Usage` after it
    Column("state", Text),  # JSON of the rest of a `StepRecord`: what the run knows, which calls are answered
    Column("finished_at", Float, nullable=False),
    PrimaryKeyConstraint("run_id", "step"),
    sqlite_with_rowid=False,
)
"""One row a step: when its reply has come, again with each answer, and finished before the next begins. Step 0 is the
history that the run began with."""

model_requests = Table(
    "model_requests",
    metadata,
    Column("id", Text, primary_key=True),  # MESSAGE/RUN/KIND/ATTEMPT; the event's number where there is no message
    Column("task_id", Text, ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("step", Integer),
    Column("attempt", Integer, nullable=False),
    Column("kind", Text, nullable=False),  # step | finalisation | compaction | count
    Column("model", Text, nullable=False),
    Column("ended", Text, nullable=False),  # ok | failed | retried | cancelled
    Column("error", Text),  # `ModelError.kind`
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cache_creation_tokens", Integer, nullable=False),
    Column("cache_read_tokens", Integer, nullable=False),
    Column("estimated", Integer, nullable=False),  # 1: the server reported no usage, these are our estimate
    Column("cost_usd", Float),  # null: no price is known, which is not 0
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float, nullable=False),
    Column("stop_reason", Text),  # of a reply
    Column("request_id", Text),  # the service's
    Column("cache_creation_hour_tokens", Integer, nullable=False, server_default="0"),  # of those written
    Column("detail", Text),  # JSON of a `UsageDetail`: service tier, server tools, iterations; null: none was told
    Index("model_requests_of_task", "task_id", "started_at"),
    Index("model_requests_of_run", "run_id"),
)
"""The ledger: every request to a model is one row, so that no cost lacks and none counts twice."""

definitions = Table(
    "definitions",
    metadata,
    Column("type", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("definition", Text, nullable=False),  # JSON of a `SubagentDefinition`
    Column("source", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("removed_at", Float),  # set on the newest version only: an ended task still names its own
    PrimaryKeyConstraint("type", "version"),
)
"""Versions are only ever added; the newest that is not removed serves."""

user_usage = Table(
    "user_usage",
    MetaData(),  # a view: no migration compares it with this
    Column("user_id", Text),
    Column("day", Text),
    Column("requests", Integer),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("cache_creation_tokens", Integer),
    Column("cache_read_tokens", Integer),
    Column("cost_usd", Float),
    Column("unpriced_requests", Integer),
)
"""Usage per user and day (UTC), main agents and subagents together: a view over the ledger, kept nowhere."""
