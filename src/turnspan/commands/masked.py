"""What is masked in a session and where, and the strings that look most like secrets and are not masked."""

from __future__ import annotations

import re
from collections import Counter
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from turnspan.commands.records import span_record
from turnspan.secrets.likely import likely_secrets, pattern_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnspan.page.preview import PreviewedTrace

_MARKER: Final = re.compile(r"\[redacted:([a-z0-9_-]{1,40})\]")
_MOST: Final = 20
_CONTENT: Final = ("name", "model", "error", "error_message", "input", "output", "facts")


class FieldPlace(NamedTuple):
    """Where a string is: in which turn, span and field."""

    turn: str
    span: str
    field: str


class MaskingReport:
    """What is masked, by rule and place, and what is not masked and looks like a secret."""

    def __init__(self, shown: Iterable[PreviewedTrace]) -> None:
        self.is_anything = False
        self.masked: Counter[tuple[str, FieldPlace]] = Counter()
        self._likely: dict[str, tuple[float, FieldPlace]] = {}
        for previewed in shown:
            self.is_anything = True
            turn = previewed.trace.name.partition(": ")[0]  # without the beginning of the prompt
            for span in previewed.trace.spans:
                record = span_record(span)
                for field, text in _strings({key: record[key] for key in _CONTENT}):
                    self._look(FieldPlace(turn, span.name, field), text)

    def _look(self, place: FieldPlace, text: str) -> None:
        self.masked.update((rule, place) for rule in _MARKER.findall(text))
        for bits, value in likely_secrets(text):
            self._likely.setdefault(value, (bits, place))

    def record(self) -> dict[str, object]:
        """Return the report as a record."""
        return {
            "masked": [
                {"rule": rule, **place._asdict(), "times": times} for (rule, place), times in self.masked.items()
            ],
            "unmasked": [
                {"text": text, **place._asdict(), "pattern": pattern_for(text)} for text, place in self.unmasked()
            ],
        }

    def unmasked(self) -> list[tuple[str, FieldPlace]]:
        """Return the strings that look most like secrets, the most likely first."""
        best = nlargest(_MOST, self._likely.items(), key=lambda item: (item[1][0], item[0]))
        return [(text, place) for text, (_, place) in best]

    def lines(self) -> Iterator[str]:
        """Yield the report for a terminal."""
        rules = Counter[str]()
        for (rule, _), times in self.masked.items():
            rules[rule] += times
        yield "Masked:" if rules else "Masked: nothing"
        for rule, times in rules.most_common():
            yield f"  {rule} ({times})"
            for (other, place), number in self.masked.items():
                if other == rule:
                    yield f"    {' > '.join(place)}" + (f" ({number} times)" if number > 1 else "")
        unmasked = self.unmasked()
        yield ""
        yield "Not masked, but they look like secrets:" if unmasked else "Nothing else looks like a secret."
        for text, place in unmasked:
            yield f"  {text}"
            yield f"    {' > '.join(place)}"
        if unmasked:
            yield ""
            yield "To mask one of them, add its line to config.toml:"
            yield "[patterns]"
        for number, (text, _) in enumerate(unmasked, 1):
            yield f"mine-{number} = '{pattern_for(text)}'"


def _strings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key}".lstrip("."), str(key)
            yield from _strings(item, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _strings(item, f"{path}[{number}]")
