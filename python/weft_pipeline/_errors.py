"""Exceptions: one class per status of the C library, and VerifyError for a failed check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ._report import Report


class Error(Exception):
    """Something failed: `message` says what was found and expected, `hint` what to do.

    `line` and `column` count from 1 and are None where there is no place in a text.
    """

    status: str = "error"

    def __init__(
        self,
        message: str,
        hint: str = "",
        line: Optional[int] = None,
        column: Optional[int] = None,
    ) -> None:
        """Make an error with what C's struct weft_error has."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.line = line
        self.column = column

    def __str__(self) -> str:
        """Give the message, and the hint on a line of its own."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> Any:
        """Pickle, for errors that cross processes."""
        return type(self), (self.message, self.hint, self.line, self.column)


class UsageError(Error, ValueError):
    """The caller asked for something that cannot be: a bad shape, an unknown name."""

    status = "usage"


class FormatError(Error, ValueError):
    """Malformed text; `line` and `column` say where."""

    status = "format"


class LimitError(Error, ValueError):
    """More than a stated limit; the message gives both numbers."""

    status = "limit"


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory."""

    status = "memory"


class InvalidError(Error, ValueError):
    """Well-formed, but not a schedule that can be executed; or no schedule fits."""

    status = "invalid"


class MissingError(Error, FileNotFoundError):
    """A file is not there."""

    status = "missing"


class FileError(Error, OSError):
    """Reading or writing a file failed."""

    status = "io"


class PeerError(Error):
    """Another rank died, or is not the one that was expected."""

    status = "peer"


class StalledError(Error, TimeoutError):
    """No progress within the stall limit."""

    status = "stalled"


class ProtocolError(Error):
    """A message is not what it should be: damaged, or out of turn."""

    status = "protocol"


class StageError(Error):
    """A stage's function failed."""

    status = "stage"


class CancelledError(Error):
    """Somebody asked to stop."""

    status = "cancelled"


class UnavailableError(Error):
    """A library or device that is needed is not there."""

    status = "unavailable"


class InternalError(Error):
    """A bug in Weft: two of its parts disagree."""

    status = "internal"


class RefusedError(Error):
    """The system refuses what is needed: a thread."""

    status = "system"


class DeviceError(Error):
    """A device reports an error: a kernel failed, a launch was refused."""

    status = "device"


class VerifyError(Error):
    """A check found something. It has the place of the first finding, and the whole report."""

    status = "invalid"

    def __init__(self, report: Report) -> None:
        """Make the error of a report with findings."""
        first = report.findings[0]
        super().__init__(str(first), first.hint)
        self.report = report
        self.rule = first.rule
        self.rank = first.rank
        self.step = first.step
        self.action = first.action
        self.cycle = first.cycle

    def __reduce__(self) -> Any:
        """Pickle with the report."""
        return type(self), (self.report,)


class HostLimitWarning(UserWarning):
    """Steps take as long as the host takes to launch them, so costs of kernels promise too much."""


_CLASSES: dict[str, type[Error]] = {
    kind.status: kind for kind in Error.__subclasses__() if kind is not VerifyError
}


def error_of_status(
    name: str, message: str, hint: str, line: Optional[int], column: Optional[int]
) -> Error:
    """Make the exception of a status by its name."""
    return _CLASSES.get(name, Error)(message, hint, line, column)
