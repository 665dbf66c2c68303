"""Who answers a main agent's questions: the person at the terminal, or the policy that `--answers` names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TextIO

import anyio

from kinfold.cli.ending import printable
from kinfold.tools import policy
from kinfold.tools.people import Answer, Asked, People

YES, NO = frozenset({"y", "yes"}), frozenset({"n", "no"})


def people_for(answers: str | None, calm: Callable[[], AbstractContextManager[object]]) -> People | None:
    """The named policy, else the person where standard input and error are a terminal, else nobody.

    `calm` keeps the view still while a question stands on the terminal. Raises `ConfigError` for a policy that cannot
    be used.
    """
    if answers is not None:
        return People(answer=policy.load(answers))
    if sys.stdin.isatty() and sys.stderr.isatty():
        return People(answer=Terminal(calm=calm))
    return None


@dataclass(slots=True, kw_only=True)
class Terminal:
    """Asks on standard error and reads lines of standard input; one question at a time."""

    calm: Callable[[], AbstractContextManager[object]]
    source: TextIO = field(default_factory=lambda: sys.stdin)
    target: TextIO = field(default_factory=lambda: sys.stderr)
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    async def __call__(self, asked: Asked) -> Answer | None:
        """The person's answer; None where standard input ends."""
        async with self._turn:
            with self.calm():
                self._say(question_lines(asked))
                try:
                    return await self._until_answered(asked)
                except anyio.get_cancelled_exc_class():
                    self._say(["", "(no longer waited for)"])
                    raise

    async def _until_answered(self, asked: Asked) -> Answer | None:
        while True:
            self.target.write("> ")
            self.target.flush()
            # No thread: a blocked read could not be taken back at the deadline. A terminal is readable by whole lines.
            await anyio.wait_readable(self.source.fileno())
            line = self.source.readline()
            if not line:
                return None
            text = read_answer(asked, line.strip())
            if text is not None:
                return Answer(text=text)
            self._say(["please answer y or n"])

    def _say(self, lines: Sequence[str]) -> None:
        self.target.write("".join(f"{printable(line)}\n" for line in lines))
        self.target.flush()


def question_lines(asked: Asked) -> list[str]:
    """A question as a person reads it; what an agent wrote is data, and cannot draw on the terminal."""
    wait = f"(without an answer in {asked.timeout:g} s: {asked.assumption})"
    if asked.kind == "confirm":
        return [f"? Allow this? {asked.text}", f"  y or n {wait}"]
    choices = [f"  {number}. {choice}" for number, choice in enumerate(asked.choices, start=1)]
    how = "a number, or your own words" if choices else "your answer"
    return [f"? {asked.text}", *choices, f"  {how}; an empty line takes what holds anyway {wait}"]


def read_answer(asked: Asked, line: str) -> str | None:
    """What a typed line means; None: it answers nothing, ask again."""
    if asked.kind == "confirm":
        word = line.lower()
        return "yes" if word in YES else "no" if word in NO else None
    if not line:
        return asked.assumption
    if line.isdecimal() and 1 <= int(line) <= len(asked.choices):
        return asked.choices[int(line) - 1]
    return line
