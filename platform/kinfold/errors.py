"""The whole error tree of kinfold; nothing else in the package defines an exception of its own that callers may catch.

KinfoldError              .code (stable)  .hint (one actionable line)
├── ConfigError           before any container exists                              exit 2
├── SandboxError          ends the task                                            exit 3
│   ├── EngineUnavailable
│   ├── ImageMissing
│   ├── StartFailed
│   ├── Unenforceable
│   └── SandboxLost
│       └── LeaseLost
├── StoreError            what kinfold keeps cannot be read or written             exit 2
├── PathError             a path inside the workspace; a tool turns it into a result
├── ModelError            the model's service failed                               exit 4
├── ToolError             the model can fix this; only ever becomes a failed tool result
├── LimitExceeded
└── NotFound
"""

from __future__ import annotations

from typing import Any, Literal

PathReason = Literal[
    "path_escape",
    "not_found",
    "is_directory",
    "not_a_directory",
    "not_regular",
    "permission_denied",
    "too_large",
    "conflict",
    "invalid",
    "no_space",
]
ModelErrorKind = Literal[
    "authentication",
    "permission",
    "not_found",
    "invalid_request",
    "unpaired_calls",
    "thinking",
    "context",
    "too_large",
    "billing",
    "rate_limit",
    "overloaded",
    "server",
    "timeout",
    "connection",
    "stream",
    "script",
]
LimitName = Literal["steps", "tokens", "time", "cost"]


class KinfoldError(Exception):
    """Base of every error that kinfold raises on purpose."""

    code: str = "kinfold_error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code


class ConfigError(KinfoldError):
    """Raised when what the operator asked for cannot be right, before any container exists.

    Once a container exists, raise a `SandboxError` instead; for a model's mistake raise `ToolError`.
    """

    code = "config_error"


class SandboxError(KinfoldError):
    """Raised when the sandbox cannot do its work; ends the task. Raise a subclass where one fits."""

    code = "sandbox_error"


class EngineUnavailable(SandboxError):
    """Raised when no container engine answers, or it refuses us permission."""

    code = "engine_unavailable"


class ImageMissing(SandboxError):
    """Raised when the image is not on the engine and may not, or could not, be pulled."""

    code = "image_missing"


class StartFailed(SandboxError):
    """Raised when a container was created but never became a working sandbox."""

    code = "start_failed"


class Unenforceable(SandboxError):
    """Raised when a demanded control is not enforced here and the spec is strict."""

    code = "unenforceable"


class SandboxLost(SandboxError):
    """Raised when a sandbox died or was removed under a running task.

    Never raised for a command that failed: that is an `ExecResult`.
    """

    code = "sandbox_lost"


class LeaseLost(SandboxLost):
    """Raised when another process took a sandbox over, or began to remove it, since its record was read."""

    code = "lease_lost"


StoreErrorCode = Literal[
    "store_locked", "store_corrupt", "store_newer", "store_full", "store_unwritable", "store_failed"
]


class StoreError(KinfoldError):
    """Raised when the store of records, tasks and events cannot be read or written; `code` says which kind it is.

    It never stops the ending of a sandbox. For a state directory that cannot be made raise `ConfigError`.
    """

    code = "store_failed"

    def __init__(self, message: str, *, hint: str, code: StoreErrorCode) -> None:
        super().__init__(message, hint=hint, code=code)


class PathError(KinfoldError):
    """Raised when a path inside the workspace cannot be used as asked; `reason` says why in one word."""

    code = "path_error"

    def __init__(self, reason: PathReason, path: str, detail: str = "", *, hint: str = "") -> None:
        message = f"{path!r}: {detail or _PATH_WORDS[reason]}"
        super().__init__(message, hint=hint, code=reason)
        self.reason: PathReason = reason
        self.path = path


_PATH_WORDS: dict[PathReason, str] = {
    "path_escape": "the path leaves the workspace",
    "not_found": "no such file or directory",
    "is_directory": "is a directory",
    "not_a_directory": "is not a directory",
    "not_regular": "is not a regular file",
    "permission_denied": "permission denied",
    "too_large": "is too large",
    "conflict": "changed since it was read",
    "invalid": "is not a usable path",
    "no_space": "no space left in the workspace",
}


class ModelError(KinfoldError):
    """Raised when the model's service refused or failed a request after all retries."""

    code = "model_error"

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind,
        retryable: bool = False,
        attempts: int = 1,
        request_id: str | None = None,
        hint: str = "",
        usage: Any = None,
        message_id: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.kind: ModelErrorKind = kind
        self.retryable = retryable
        self.attempts = attempts
        self.request_id = request_id
        self.usage = usage
        """What the last attempt is billed for, a `messages.Usage` (this lowest room cannot name it); None: not told."""
        self.message_id = message_id
        """Of the last attempt's message, where one had begun."""


class ToolError(KinfoldError):
    """Raised when a tool call is wrong in a way that the model can fix; only `registry.dispatch` catches it."""

    code = "tool_error"


class LimitExceeded(KinfoldError):
    """Raised when a run's own limit is reached; `limit` names it."""

    code = "limit_exceeded"

    def __init__(self, message: str, *, limit: LimitName, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.limit: LimitName = limit


class NotFound(KinfoldError):
    """Raised when a named task, sandbox, run, exec or definition is not known. For a file raise `PathError`."""

    code = "not_found"
