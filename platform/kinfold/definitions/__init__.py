"""Subagent definitions: what they are, where they are read from, and the three that ship."""

from kinfold.definitions.definition import (
    DEFAULT_TOOL_KEYS,
    FORBIDDEN_IN_SUBAGENTS,
    KNOWN_TOOL_KEYS,
    Effort,
    HasToolCall,
    IgnoredField,
    StopCondition,
    SubagentDefinition,
    TextMatches,
    Thinking,
    TokensOver,
    has_tool_call,
    text_matches,
    tokens_over,
)
from kinfold.definitions.loaders import Candidate, candidates, load
from kinfold.definitions.shipped import DEFAULT

__all__ = [
    "DEFAULT",
    "DEFAULT_TOOL_KEYS",
    "FORBIDDEN_IN_SUBAGENTS",
    "KNOWN_TOOL_KEYS",
    "Candidate",
    "Effort",
    "HasToolCall",
    "IgnoredField",
    "StopCondition",
    "SubagentDefinition",
    "TextMatches",
    "Thinking",
    "TokensOver",
    "candidates",
    "has_tool_call",
    "load",
    "text_matches",
    "tokens_over",
]
