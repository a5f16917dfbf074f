"""The tree of errors, and who must act on each.

TurnspanError
├── TranscriptError      the file named is not a transcript we can read: the person named it
├── ConfigError          a setting is wrong: the person changes it
├── StateError           our own files cannot be read or written: permissions, disk, a newer turnspan
└── BackendError         a destination cannot be used as it is configured

Every error carries a sentence, and a hint that says what to do about it. What a server answers is not an error but a
Verdict (`turnspan.backends`).
"""

from __future__ import annotations


class TurnspanError(Exception):
    """Something a person can act on."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}; {self.hint}" if self.hint else message


class TranscriptError(TurnspanError):
    """The file named cannot be read as a transcript."""


class ConfigError(TurnspanError):
    """A setting is missing or wrong."""


class StateError(TurnspanError):
    """Our own state cannot be read or written."""


class BackendError(TurnspanError):
    """A destination cannot be used as configured."""
