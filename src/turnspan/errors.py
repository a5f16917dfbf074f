"""The exceptions of turnspan.

TurnspanError
├── TranscriptError      a file is not a transcript that can be read
├── ConfigError          a setting is missing or wrong
├── StateError           our own files cannot be read or written: permissions, disk, a newer turnspan
└── BackendError         a destination cannot be used as it is configured

Every error has a message and a hint that says what to do. The response of a server is not an error but a Verdict
(`turnspan.backends`).
"""

from __future__ import annotations


class TurnspanError(Exception):
    """An error that the user can act on."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}; {self.hint}" if self.hint else message


class TranscriptError(TurnspanError):
    """A file cannot be read as a transcript."""


class ConfigError(TurnspanError):
    """A setting is missing or wrong."""


class StateError(TurnspanError):
    """Our own state cannot be read or written."""


class BackendError(TurnspanError):
    """A destination cannot be used as it is configured."""
