"""The daemon's errors as exceptions: one class for each `code` of the protocol."""

from __future__ import annotations

from typing import Any


class SkipdError(Exception):
    """What every error here is. `str()` is for a person; the rest is for programs."""

    #: The protocol's word for this kind of error.
    code = "error"
    #: The daemon is away: it starts, ends, hangs or is not there. The same client serves again once `wait_ready` has returned.
    away = False

    def __init__(self, message: str, *, param: str | None = None, details: dict[str, Any] | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        #: The field at fault, if one is.
        self.param = param
        #: Numbers: the counts of an overflow, `retry_after_s` of a busy daemon; of an early end the `usage`, and from `answer` the `text` so far.
        self.details = details or {}
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.param}: {self.message}" if self.param and self.param not in self.message else self.message


class InvalidRequest(SkipdError):
    """A field is missing, has the wrong type or an impossible value."""

    code = "invalid_request"


class Unsupported(SkipdError):
    """A field that would change the output and that skipd does not do."""

    code = "unsupported_parameter"


class ContextOverflow(SkipdError):
    """Prompt and answer do not fit the context; details hold the counts."""

    code = "context_length_exceeded"


class CacheTooSmall(SkipdError):
    """The request needs more cache than the daemon has."""

    code = "cache_too_small"


class TooLarge(SkipdError):
    """The body is larger than the daemon reads."""

    code = "request_too_large"


class NotFound(SkipdError):
    """No such route, phase or object."""

    code = "not_found"


class ModelNotFound(SkipdError):
    """The request names a model that is not loaded."""

    code = "model_not_found"


class MethodNotAllowed(SkipdError):
    """The route exists, for another method."""

    code = "method_not_allowed"


class TableRefused(SkipdError):
    """A table, tier or selector was refused; the old one stays."""

    code = "table_refused"


class NothingPending(SkipdError):
    """There is nothing to confirm or revert."""

    code = "nothing_pending"


class AccessDenied(SkipdError):
    """The caller may not do this."""

    code = "access_denied"


class Unauthenticated(SkipdError):
    """Over TCP: the key is missing or wrong."""

    code = "invalid_api_key"


class Busy(SkipdError):
    """The queue is full: try again after `details["retry_after_s"]`."""

    code = "busy"


class NotReady(SkipdError):
    """The model is still loading, or failed to."""

    code = "not_ready"
    away = True


class Draining(SkipdError):
    """The daemon finishes what runs and takes nothing new."""

    code = "draining"
    away = True


class Cancelled(SkipdError):
    """The request was cancelled."""

    code = "cancelled"


class Deadline(SkipdError):
    """The request's deadline passed."""

    code = "deadline_exceeded"


class SlowReader(SkipdError):
    """The stream was read too slowly."""

    code = "slow_reader"


class Shutdown(SkipdError):
    """The daemon is shutting down."""

    code = "shutdown"
    away = True


class DeviceFault(SkipdError):
    """The device failed; the daemon restarts."""

    code = "device_fault"
    away = True


class Internal(SkipdError):
    """A fault in the daemon."""

    code = "internal_error"


class Unreachable(SkipdError):
    """No daemon answers."""

    code = "unreachable"
    away = True


class ProtocolError(SkipdError):
    """The answer is not the protocol's."""

    code = "protocol_error"


class Disconnected(SkipdError):
    """The connection broke before the end."""

    code = "disconnected"
    away = True


_BY_CODE: dict[str, type[SkipdError]] = {kind.code: kind for kind in SkipdError.__subclasses__()}
_BY_STATUS: dict[int, type[SkipdError]] = {
    401: Unauthenticated, 403: AccessDenied, 404: NotFound, 405: MethodNotAllowed, 409: TableRefused, 413: TooLarge, 429: Busy,
    503: NotReady, 504: Deadline,
}


def of_object(error: Any, status: int = 500) -> SkipdError:
    """The exception of an `error` object that came with a status; a code that is not known keeps its word."""
    if not isinstance(error, dict):
        return of_status(status)
    code, details = error.get("code"), error.get("details")
    kind = _BY_CODE.get(str(code)) or _BY_STATUS.get(status) or (Internal if status >= 500 else InvalidRequest)
    return kind(str(error.get("message", "")), param=error.get("param"), details=details if isinstance(details, dict) else None, code=code)


def of_status(status: int) -> SkipdError:
    """What a status alone says."""
    kind = _BY_STATUS.get(status) or (Internal if status >= 500 else InvalidRequest if status >= 400 else ProtocolError)
    return kind(f"the daemon answered with status {status}")
