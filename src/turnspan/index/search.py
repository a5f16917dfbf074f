"""Full-text search in the masked text of all sessions.

Rules:

- A hit is a turn, with the place where it was found: the first of its texts that matches, and how many others do.
- All words must be in the same text: a prompt, an answer, a tool's input or output. `"an exact phrase"`, `begin*` and
  `-without` work as in other search engines. Everything else is searched for as it is typed: each word is quoted, so no
  input is a syntax error of FTS5.
- Chinese, Japanese and Thai are written without spaces, so the index has no words of them: they are found as parts of
  a text, by reading every text.
- The newest turns come first: people look for what they did, not for what mentions a word most often.
"""

# ruff: noqa: S608 - the conditions are made of constants, words and values are parameters

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.index.stats import conditions
from turnspan.text import plain

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from turnspan.index.stats import Slice

_TERM: Final = re.compile(r'(-?)(?:"([^"]*)"?|([^\s"]+))')
_WORD: Final = re.compile(r"\w")
# Scripts without spaces between words: Thai to Khmer, kana, Chinese characters, compatibility ideographs.
_UNSPACED: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_BEGIN, _END = "\x02", "\x03"  # around a match in a snippet
_LAST: Final = 1 << 50  # greater than any row
_CONTEXT_WORDS: Final = 24
_CONTEXT: Final = 160  # characters around a match that is not a word
_LONGEST: Final = 400  # characters of context; a word can be a megabyte


class Query(msgspec.Struct, frozen=True):
    """What to look for: expressions of FTS5, and parts of a text, that must or must not be there."""

    match: str
    unmatched: str = ""
    parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Hit(msgspec.Struct, frozen=True):
    """A turn in which the words were found."""

    session_id: str
    title: str
    project: str
    branch: str
    trace_id: str
    span_id: str
    turn: int | None  # its number; None for what belongs to no turn
    start_ns: int
    kind: str  # prompt, answer, thinking, tool_input, tool_output, title
    context: tuple[tuple[str, bool], ...]  # pieces of text, and whether each is a match
    others: int  # further texts of the turn that match


class Found(msgspec.Struct, frozen=True):
    """Some of the hits, and how many turns match in all."""

    hits: tuple[Hit, ...]
    turns: int


def parsed(words: str) -> Query:
    """Return what the words of a user mean. Raises ConfigError if there is nothing to look for."""
    terms: dict[tuple[bool, bool], list[str]] = {
        (is_part, is_not): [] for is_part in (False, True) for is_not in (False, True)
    }
    for minus, phrase, word in _TERM.findall(words.replace("\0", " ")):
        text = phrase or word.rstrip("*")
        if not _WORD.search(text):
            continue  # punctuation is not indexed
        is_part = _UNSPACED.search(text) is not None
        quoted = f'"{text}"' + ("*" if word.endswith("*") else "")  # a term contains no quotation mark
        terms[is_part, bool(minus)].append(text if is_part else quoted)
    wanted, unwanted, parts, missing = terms.values()
    if not wanted and not parts:
        raise ConfigError("nothing to search for", hint='give a word, a "phrase" or the beginning of a word: begin*')
    return Query(" AND ".join(wanted), " OR ".join(unwanted), tuple(parts), tuple(missing))


def search(connection: sqlite3.Connection, query: Query, chosen: Slice, *, limit: int = 20, offset: int = 0) -> Found:
    """Return the turns that match, newest first."""
    where, values = conditions("turn", chosen)
    of_text, text_values = _text_conditions(query)
    rows = connection.execute(
        # A title is often a part of the prompt: it is the place only if no other text of the turn matches.
        "WITH place AS MATERIALIZED (SELECT text.rowid + (text.kind = 'title') * ? AS number, text.turn AS turn"
        f" FROM text WHERE {of_text})"
        " SELECT MIN(place.number), COUNT(*), COUNT(*) OVER (), turn.id, session.session_id, session.title,"
        " turn.project, turn.branch, turn.trace_id, turn.number, turn.start_ns"
        " FROM place JOIN turn ON turn.id = place.turn JOIN session ON session.id = turn.session"
        f" WHERE {where} GROUP BY turn.id ORDER BY turn.start_ns DESC, session.session_id, turn.position DESC"
        " LIMIT ? OFFSET ?",
        [_LAST, *text_values, *values, limit, offset],
    ).fetchall()
    hits = []
    for place, texts, _, _, session_id, title, project, branch, trace_id, number, start_ns in rows:
        kind, span_id, context = _context(connection, place % _LAST, query)
        hits.append(
            Hit(
                session_id, title or "", project or "", branch or "", trace_id, span_id or "", number, start_ns or 0,
                kind, context, texts - 1,
            )
        )  # fmt: skip
    return Found(tuple(hits), rows[0][2] if rows else 0)


def short_id(connection: sqlite3.Connection, session_id: str) -> str:
    """Return the beginning of an id, if no other session begins like it, or all of it."""
    start = session_id[:8]
    (sessions,) = connection.execute(
        "SELECT COUNT(DISTINCT session_id) FROM session WHERE substr(session_id, 1, ?) = ?", (len(start), start)
    ).fetchone()
    return start if sessions == 1 else session_id


def _text_conditions(query: Query) -> tuple[str, list[object]]:
    """Return the condition for a text, and its values."""
    parts, values = list[str](), list[object]()
    if query.match:
        parts.append("text MATCH ?")
        values.append(query.match)
    if query.unmatched:
        parts.append("text.rowid NOT IN (SELECT rowid FROM text WHERE text MATCH ?)")
        values.append(query.unmatched)
    for word, part in (*(("", part) for part in query.parts), *(("NOT ", part) for part in query.missing)):
        parts.append(f"body {word}LIKE ? ESCAPE '\\'")
        values.append("%" + re.sub(r"([%_\\])", r"\\\1", part) + "%")
    return " AND ".join(parts), values


def _context(
    connection: sqlite3.Connection, place: int, query: Query
) -> tuple[str, str | None, tuple[tuple[str, bool], ...]]:
    """Return the kind of a text, its span, and the words around the first match."""
    if query.match:
        kind, span_id, found = connection.execute(
            "SELECT kind, span_id, snippet(text, 3, ?, ?, '…', ?) FROM text WHERE rowid = ? AND text MATCH ?",
            (_BEGIN, _END, _CONTEXT_WORDS, place, query.match),
        ).fetchone()
    else:
        part = query.parts[0]
        kind, span_id, found = connection.execute(
            "SELECT kind, span_id, substr(body, max(1, instr(lower(body), lower(?)) - ?), ?) FROM text WHERE rowid = ?",
            (part, _CONTEXT // 4, _CONTEXT, place),
        ).fetchone()
        found = re.sub(re.escape(part), lambda same: f"{_BEGIN}{same[0]}{_END}", found, flags=re.IGNORECASE)
    return kind, span_id, tuple(_pieces(found))


def _pieces(found: str) -> Iterator[tuple[str, bool]]:
    """Split a snippet at its marks. A text can contain such marks, too: then a piece too many is a match."""
    left = _LONGEST
    pieces = [(piece, n % 2 == 1) for n, piece in enumerate(re.split(f"[{_BEGIN}{_END}]", found))]
    if len(pieces) > 1 and len(pieces[0][0]) > _LONGEST // 2:  # one very long word before the match
        pieces[0] = ("…" + pieces[0][0][-_LONGEST // 2 :], False)
    for piece, is_match in pieces:
        shown = " ".join(plain(piece[: left + 1]).split())
        shown = (" " if piece[:1].isspace() else "") + shown + (" " if shown and piece[-1:].isspace() else "")
        if len(piece) > left:
            yield shown[:left] + "…", is_match
            return
        left -= len(piece)
        if shown:
            yield shown, is_match
