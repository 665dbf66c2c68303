"""Requests that share a prefix which nobody has cached yet: one goes ahead, and the others do not pay for it, too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
import pytest
from tests.unit.models.asking import Ask, MakeModel, question

from kinfold.models import prefixes
from kinfold.models.base import ModelRequest
from kinfold.testing.messages_api import Answer, Interruption, MessagesApi, Outcome, Silence, internal

pytestmark = pytest.mark.anyio
RULES = ("A long rule that all siblings share. " * 100,)
SILENT = Answer.text("late", interruption=Interruption(where="before_block", how="stall"))
"""The service has taken the request, and no token of its reply has come."""
BEGUN = Answer.text("a long reply", interruption=Interruption(where="inside_block", how="stall"))


def sibling(name: str, **more: Any) -> ModelRequest:
    return question(name, **{"system": RULES, **more})


def asker(body: Mapping[str, Any]) -> str:
    return str(body["messages"][-1]["content"][-1]["text"])


class Stage:
    """A server that answers by who asks, and how to ask it side by side."""

    def __init__(self, model_of: MakeModel, ask: Ask, **outcomes: Outcome) -> None:
        self._outcomes = outcomes
        self._model_of = model_of
        self._ask = ask
        self.api = MessagesApi(lambda body: self._outcomes.get(asker(body), Answer.text("yes")))
        self.answered: list[str] = []

    @property
    def asked(self) -> list[str]:
        return [asker(body) for body in self.api.requests]

    async def ask(self, name: str, **more: Any) -> None:
        await self._ask(self._model_of(self.api), sibling(name, **more))
        self.answered.append(name)


@pytest.fixture
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "LONGEST", 1_000.0)


@pytest.mark.usefixtures("no_time_limit")
async def test_siblings_wait_for_the_first_token_of_the_one_that_goes_ahead(model_of: MakeModel, ask: Ask) -> None:
    stage = Stage(model_of, ask, first=SILENT)
    async with stage.api, anyio.create_task_group() as group:
        ahead = anyio.CancelScope()

        async def go_ahead() -> None:
            with ahead:
                await stage.ask("first")

        group.start_soon(go_ahead)
        await stage.api.until_open(1)
        for name in ("second", "third"):
            group.start_soon(stage.ask, name)
        await stage.ask("stranger", system=("Another rule. " * 200,))
        assert stage.asked == ["first", "stranger"]
        ahead.cancel()  # it gives up without a token, so the next one goes ahead
    assert stage.answered == ["stranger", "second", "third"]


@pytest.mark.usefixtures("no_time_limit")
async def test_siblings_go_at_the_first_token_though_the_reply_is_not_at_its_end(model_of: MakeModel, ask: Ask) -> None:
    stage = Stage(model_of, ask, first=BEGUN)
    async with stage.api, anyio.create_task_group() as group:
        group.start_soon(stage.ask, "first")
        await stage.api.until_open(1)
        with anyio.fail_after(10):
            await stage.ask("second")
            await stage.ask("third")
        group.cancel_scope.cancel()
    assert stage.answered == ["second", "third"]


async def test_nobody_waits_longer_than_the_limit(
    model_of: MakeModel, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prefixes.LONGEST == 5.0
    monkeypatch.setattr(prefixes, "LONGEST", 0.05)
    stage = Stage(model_of, ask, first=Silence())
    async with stage.api, anyio.create_task_group() as group:
        group.start_soon(stage.ask, "first")
        while not stage.asked:
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(10):
            await stage.ask("second")
        group.cancel_scope.cancel()
    assert stage.answered == ["second"]


@pytest.mark.usefixtures("no_time_limit")
@pytest.mark.parametrize("why", ["cached", "small", "other settings"])
async def test_nobody_waits_for_what_is_cached_too_small_or_anothers(why: str, model_of: MakeModel, ask: Ask) -> None:
    more: dict[str, Any] = {"system": ("Short.",), "tools": ()} if why == "small" else {}
    stage = Stage(model_of, ask, first=SILENT, second=SILENT)
    async with stage.api, anyio.create_task_group() as group:
        if why == "cached":
            await stage.ask("zeroth")
        other = {"effort": "low"} if why == "other settings" else {}
        group.start_soon(partial(stage.ask, "first", **more))
        group.start_soon(partial(stage.ask, "second", **more, **other))
        with anyio.fail_after(10):
            await stage.api.until_open(2)
        group.cancel_scope.cancel()


@pytest.mark.usefixtures("no_time_limit")
async def test_what_was_cached_is_forgotten_after_its_time(
    model_of: MakeModel, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "LIFETIME", 0.0)
    stage = Stage(model_of, ask, first=SILENT)
    async with stage.api, anyio.create_task_group() as group:
        await stage.ask("zeroth")
        group.start_soon(stage.ask, "first")
        await stage.api.until_open(1)
        group.start_soon(stage.ask, "second")
        await stage.ask("stranger", system=("Another rule. " * 200,))
        assert "second" not in stage.asked
        group.cancel_scope.cancel()


async def test_a_failure_that_is_tried_again_keeps_its_place(model_of: MakeModel, ask: Ask) -> None:
    script: list[Outcome] = [internal(), Answer.text("yes"), Answer.text("yes")]
    async with MessagesApi(script) as api, anyio.create_task_group() as group:
        for name in ("first", "second"):
            group.start_soon(ask, model_of(api), sibling(name))
    assert len({asker(body) for body in api.requests[:2]}) == 1
    assert len(api.requests) == 3
