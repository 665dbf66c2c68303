"""What a service tells of a request beside its counts: why it stopped, its id, its cache entries' time, the rest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add them; older rows do not know them."""
    op.add_column("model_requests", sa.Column("stop_reason", sa.Text))
    op.add_column("model_requests", sa.Column("request_id", sa.Text))
    hour = sa.Column("cache_creation_hour_tokens", sa.Integer, nullable=False, server_default="0")
    op.add_column("model_requests", hour)
    op.add_column("model_requests", sa.Column("detail", sa.Text))
