"""The attributes of a span as groups, which many spans share, and the values that differ from span to span.

Spans of one kind have mostly the same attributes: the same names, and often the same values, such as an operation, a
model or a MIME type. An encoder therefore encodes the names and fixed values of a sequence of groups once, as a layout
with gaps, and only fills the gaps for each span.

Rules:

- A group is a constant, or is kept in a cache of limited size: the same attributes have the same groups. Groups are
  compared by identity.
- If a name occurs twice, the later value replaces the first one, at its place.
- A text longer than the limit is cut inside (see `content`), and `turnspan.truncated.<name>` is its original length in
  bytes.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from turnspan.backends import content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Value: TypeAlias = "str | int | float | bool | tuple[str, ...]"

_NO_LIMIT = 2**63
_LEAST, _MOST = -(2**63), 2**63 - 1
_LONGEST_FIXED = 64  # characters of a text that becomes part of a group; four bytes each are within any limit
_MAX_GROUPS = 1_000  # facts may have any name
_MAX_LAYOUTS = 1_000


class Gap:
    """The place of a value: its type (str, int, float or tuple), and its number among the values."""

    __slots__ = ("number", "type")

    def __init__(self, of: type, number: int = 0) -> None:
        self.type = of
        self.number = number


_TEXT, _SIZE = Gap(str), Gap(int, 1)


class Group:
    """Attributes that are set together, each with a fixed value or a gap, for `size` values."""

    __slots__ = ("fields", "size")

    def __init__(self, fields: dict[str, Value | Gap], size: int = 0) -> None:
        self.fields = fields
        self.size = size


class TextGroup:
    """One text under several names (those with None), next to fixed attributes; and the same for a cut text."""

    def __init__(self, fields: Mapping[str, Value | None]) -> None:
        self._fields = fields
        self.complete = Group({name: _TEXT if value is None else value for name, value in fields.items()}, 1)

    @cached_property
    def cut(self) -> Group:
        """The group of a text that was cut, with its original size."""
        fields: dict[str, Value | Gap] = {}
        for name, value in self._fields.items():
            if value is None:
                fields |= {name: _TEXT, f"turnspan.truncated.{name}": _SIZE}
            else:
                fields[name] = value
        return Group(fields, 2)


class Slot:
    """The groups of one attribute with a value of any type; `is_repeated`: its value is the same on many spans."""

    def __init__(self, name: str, *, is_repeated: bool = False) -> None:
        self.name = name
        self.is_repeated = is_repeated

    @cached_property
    def text(self) -> TextGroup:
        """The groups of a text."""
        return TextGroup({self.name: None})

    @cached_property
    def integer(self) -> Group:
        """The group of an integer of at most 64 bits."""
        return Group({self.name: Gap(int)}, 1)

    @cached_property
    def number(self) -> Group:
        """The group of a finite number."""
        return Group({self.name: Gap(float)}, 1)

    @cached_property
    def texts(self) -> Group:
        """The group of a list."""
        return Group({self.name: Gap(tuple)}, 1)


@lru_cache(maxsize=_MAX_GROUPS)
def slot(name: str) -> Slot:
    """Return the slot of an attribute."""
    return Slot(name)


def integers(*names: str) -> Group:
    """Return a group of integers."""
    return Group({name: Gap(int, number) for number, name in enumerate(names)}, len(names))


class Attributes:
    """The attributes of one span, in order."""

    __slots__ = ("_limit", "_short", "groups", "values")

    def __init__(self, limit: int = _NO_LIMIT) -> None:
        self.groups: list[Group] = []
        self.values: list[Value | bytes] = []  # for the gaps of the groups; bytes are text, encoded as UTF-8
        self._limit = limit
        self._short = limit // 4  # characters, which are at most four bytes each

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Attributes:
        """Return attributes with these names and values."""
        out = cls()
        for name, value in values.items():
            out.put(name, value)
        return out

    def as_dict(self) -> dict[str, Value]:
        """Return names and values, text as str."""
        values = [value.decode() if isinstance(value, bytes) else value for value in self.values]
        fields = fields_of(self.groups).items()
        return {name: values[field.number] if isinstance(field, Gap) else field for name, field in fields}

    def add(self, group: Group) -> None:
        """Add attributes that all have fixed values."""
        self.groups.append(group)

    def put(self, name: str, value: Value) -> None:
        """Set one attribute; a long text is cut as plain text."""
        self.fill(slot(name), value)

    def fill(self, one: Slot, value: Value) -> None:
        """Set the attribute of a slot; a long text is cut as plain text."""
        if isinstance(value, str):
            if one.is_repeated and len(value) <= _LONGEST_FIXED:
                self.groups.append(_fixed(one.name, value))
            elif len(value) <= self._short:
                self.groups.append(one.text.complete)
                self.values.append(value)
            else:
                self.text(one.text, value, is_json=False)
        elif isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
            self.groups.append(_fixed(one.name, value))
        elif isinstance(value, float):
            self.groups.append(one.number)
            self.values.append(value)
        elif isinstance(value, tuple):
            self._put_texts(one, value)
        elif _LEAST <= value <= _MOST:
            self.groups.append(one.integer)
            self.values.append(value)
        else:
            self.fill(one, _as_text(value))

    def _put_texts(self, one: Slot, value: tuple[str, ...]) -> None:
        if one.is_repeated and sum(len(item) + 1 for item in value) <= _LONGEST_FIXED:
            self.groups.append(_fixed(one.name, value))
        else:
            self.groups.append(one.texts)
            self.values.append(tuple(content.fit(item, self._limit, is_json=False) for item in value))

    def integers(self, group: Group, values: tuple[int, ...]) -> None:
        """Set a group of integers."""
        if min(values) >= _LEAST and max(values) <= _MOST:
            self.groups.append(group)
            self.values += values
        else:
            for name, value in zip(group.fields, values, strict=True):
                self.put(name, value)

    def text(self, group: TextGroup, text: str | bytes, *, is_json: bool) -> None:
        """Set the attributes of a group to a text that may be long."""
        if len(text) > self._short:
            size = len(text) if isinstance(text, bytes) else len(text.encode())
            if size > self._limit:
                self.groups.append(group.cut)
                self.values += (content.fit(text, self._limit, is_json=is_json), size)
                return
        self.groups.append(group.complete)
        self.values.append(text)


@lru_cache(maxsize=_MAX_GROUPS, typed=True)  # typed: 1 and True are equal, too
def _fixed(name: str, value: Value) -> Group:
    return Group({name: value})


def _as_text(value: int) -> str:
    """Return an integer that OTLP cannot hold as text; Python limits the length of decimal text, not of hexadecimal."""
    return str(value) if value.bit_length() < 10_000 else hex(value)


def fields_of(groups: Iterable[Group]) -> dict[str, Value | Gap]:
    """Return the fields of all groups, the gaps with their numbers among the values of all groups."""
    fields: dict[str, Value | Gap] = {}
    before = 0
    for group in groups:
        for name, field in group.fields.items():
            fields[name] = Gap(field.type, before + field.number) if isinstance(field, Gap) else field
        before += group.size
    return fields


Layout = TypeVar("Layout")


class Layouts(Generic[Layout]):
    """What an encoder has prepared for each sequence of groups."""

    def __init__(self, prepare: Callable[[dict[str, Value | Gap]], Layout]) -> None:
        self._prepare = prepare
        self._known: dict[tuple[Group, ...], Layout] = {}

    def of(self, attributes: Attributes) -> Layout:
        """Return the layout of these attributes."""
        groups = tuple(attributes.groups)
        found = self._known.get(groups)
        if found is None:
            if len(self._known) >= _MAX_LAYOUTS:
                self._known.clear()
            found = self._known[groups] = self._prepare(fields_of(groups))
        return found
