"""What a turn was asked and what was answered, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan import lazy
from turnspan.trace.model import Media, Message, Reasoning, Text, ToolCall
from turnspan.transcript.turns import TurnCall

if TYPE_CHECKING:
    from turnspan.trace.model import Part
    from turnspan.transcript.turns import ModelResponse, Prompt, Turn

BASH_MODE: Final = "!"  # the command of a turn that began with a `!` line
_BASH_TAG: Final = lazy.pattern(r"</?bash-(?:input|stdout|stderr)>")


def prompt_messages(turn: Turn) -> tuple[Message, ...] | None:
    """Return what a turn was asked; None if nothing."""
    prompt = turn.prompt
    if prompt is None:
        return None
    typed = _bash_texts(prompt) if prompt.command == BASH_MODE else (prompt.text, prompt.expansion)
    parts: list[Part] = [Text(text) for text in (*prompt.ide, *typed) if text]
    parts += [Media(mime, size) for mime, size in prompt.media]
    return (Message("user", tuple(parts)),) if parts else None


def answer_messages(turn: Turn) -> tuple[Message, ...] | None:
    """Return the last text of a turn; None if there is none."""
    text = turn.last_text
    return (Message("assistant", (Text(text),), "stop"),) if text else None


def said(response: ModelResponse, finish: str, blocks: list[tuple[str, ...]]) -> Message:
    """Return a response as a message; add the texts of several blocks that are one text in it to `blocks`."""
    if len(response.texts) > 1:
        blocks.append(tuple(response.texts))
    parts: list[Part] = []
    for part in response.parts:
        if isinstance(part, TurnCall):
            parts.append(ToolCall(part.id, part.name, part.arguments))
        elif part.kind == "thinking":
            if part.text:
                parts.append(Reasoning(part.text))
        elif part.text:
            parts.append(Text(part.text))
            if part.blocks:
                blocks.append(part.blocks)
    return Message("assistant", tuple(parts), finish)


def _bash_texts(prompt: Prompt) -> tuple[str, ...]:
    """Return the command of a `!` line and what it printed, without the tags that the client wraps around them."""
    command = _BASH_TAG.sub("", prompt.text).strip()
    return f"{BASH_MODE} {command}", _BASH_TAG.sub("", prompt.expansion).strip("\n")
