"""What the tests of models share."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.models.asking import Ask, Clock, MakeModel, question

from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import Model, ModelEvent, ModelRequest
from kinfold.models.retry import RetryPolicy
from kinfold.testing.messages_api import MessagesApi


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the machine must not stand between the SDK and loopback."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def model_of(clock: Clock) -> MakeModel:
    """Makes an AnthropicModel that talks to a loopback server."""

    def make(api: MessagesApi, name: str = "claude-sonnet-5", **options: Any) -> AnthropicModel:
        options = {"api_key": api.api_key, "retry": RetryPolicy(sleep=clock.sleep), **options}
        return AnthropicModel(name, base_url=api.base_url, **options)

    return make


@pytest.fixture
def ask() -> Ask:
    """Asks a model one question; returns everything that it streamed."""

    async def asked(model: Model, request: ModelRequest | None = None) -> list[ModelEvent]:
        return [event async for event in model.stream(request or question())]

    return asked
