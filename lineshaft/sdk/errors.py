"""What can go wrong between a client and the platform, each with the exit code of the CLI."""

from typing import Any

EXIT_JOB_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_UNREACHABLE = 4
EXIT_FAULT = 70
EXIT_INTERRUPTED = 130


class PlatformError(Exception):
    """The platform answered "no": a code for programs, a message and a hint for people."""

    def __init__(
        self, code: str, message: str, hint: str | None = None, details: Any = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = details

    @property
    def exit_code(self) -> int:
        """The CLI's exit code for this error."""
        if self.code in ("usage", "not_found"):
            return EXIT_USAGE
        if self.code in ("unavailable", "not_leader", "unreachable"):
            return EXIT_UNREACHABLE
        return EXIT_REFUSED

    def as_object(self) -> dict[str, Any]:
        """Return the error as JSON values."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "details": self.details,
        }


class UnreachableError(PlatformError):
    """No platform answers, or none could be found."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__("unreachable", message, hint)
