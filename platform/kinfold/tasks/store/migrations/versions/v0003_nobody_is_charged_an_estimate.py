"""The view over the ledger counts what was reported: of a request that was left there is an estimate, and no bill."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the view anew; it keeps nothing itself."""
    op.execute("DROP VIEW user_usage")
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
 WHERE r.estimated = 0
 GROUP BY t.user_id, day
"""
    )
