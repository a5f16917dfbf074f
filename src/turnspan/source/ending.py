"""When a turn has ended: who knows it, what that ends, how long to wait for it, and why.

An event only decides *when* a turn is exported, never *what* is in it. `WHEN` is the whole table; docs/reliability.md
prints it. What a hook said, what is remembered of it, and what the time allows are one value, `Ending`:

- A hook's words become an `Ending` in `said`, whether a worker handles them or they still wait as marks.
- `Ending.then` adds a later event to what is remembered. That is stored until it is acknowledged: an outage must not
  make a finished session look unfinished. Only the fields that events set are stored, under the names in state files.
- `Ending.known` is all that is known when a session is read: an event, what earlier ones said, and the time.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

_REMEMBERED_AGENTS: Final = 64
POLL_S: Final = 0.05  # between two looks at files that lag behind an event

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class When(NamedTuple):
    """One row of the table."""

    who: str  # knows it
    ends: str
    patience_s: float
    why: str

    @property
    def patience_ns(self) -> int:
        """The same in nanoseconds."""
        return int(self.patience_s * 1e9)


PROMPT: Final = When("a later prompt in the file", "the turns before it", 0.0, "one turn follows another")
STOP: Final = When(
    "Stop, StopFailure; SubagentStop for a subagent",
    "the turn, when the file has the last message that the event names",
    2.0,
    "the file lags behind the event; if the message never comes, the next event decides",
)
END: Final = When(
    "SessionEnd", "everything, when a turn is open and no file has grown for that long", 1.6, "the last rows come later"
)
LONGEST_END: Final = When("SessionEnd, while files grow", "everything", 6.0, "the client may still write")
LAST_ROWS: Final = When(
    "SessionEnd, remembered during an outage",
    "everything, if the last row is at most that much later than the event was handled",
    10.0,
    "the last rows come later; rows after that are of a session that was resumed",
)
DONE: Final = When(
    "SessionEnd, when all that was written by then is acknowledged",
    "everything, if the last row is not later than the event was handled",
    0.0,
    "a file can be written late; later rows are of a session that was resumed",
)
EXITED: Final = When("the process of the client has exited", "everything", 0.0, "a killed client fires no event")
CLOSED: Final = When(
    "the user, by a command",
    "the turn, if the row that closes it is in the file (`stop_hook_summary`, `turn_duration`)",
    0.0,
    "the client writes that row last",
)
MOVED: Final = When(
    "Stop, SessionEnd of a session whose turn is in another file", "that turn, if it is answered", 0.0,
    "1.0.128 `--continue` names the old file",
)  # fmt: skip
IDLE: Final = When("the clock: nothing was written", "everything", 600.0, "a client that was killed fires no event")
PENDING: Final = When(
    "the clock: nothing was written, and a tool call has no result or the last line is cut",
    "everything",
    3600.0,
    "it may be a long build, or a question to a user who is away",
)
LATE: Final = When(
    "the last line is cut, and the file was written to recently",
    "nothing: the turn waits for the rest of the line",
    60.0,
    "an event can precede the rest of a line",
)
WHEN: Final = (PROMPT, STOP, END, LONGEST_END, LAST_ROWS, DONE, EXITED, CLOSED, MOVED, IDLE, PENDING, LATE)


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about the end of the session: it decides when a turn is exported, never what is in it."""

    # What events said: stored until it is acknowledged.
    over_ns: _Count | None = None  # when the session ended
    is_done: bool = False  # … and all that was written by then is acknowledged
    stopped_ns: _Count | None = None  # when a turn ended: one that began later is another one
    stopped_bytes: _Count | None = None  # … and the size of the file then
    words: str | None = None  # … with a last message of this digest (`words_digest`)
    agents: tuple[str, ...] = ()  # subagents that have finished
    # What holds now: never stored.
    is_over: bool = False  # the session has ended: everything is exported
    is_stopped: bool = False  # the client says that the turn has ended
    stopped_session: str | None = None  # turns of this session have ended, whatever file they are in
    now_ns: int | None = None  # set if idle sessions are to be exported
    is_asked: bool = False  # the user asked for an export: a turn followed by its closing rows has ended
    acknowledged: int = 0  # turns that end before this offset were exported, so they have ended
    late_since_ns: int | None = None  # half a line in a file that was written to since then will be completed

    @classmethod
    def asked(cls, now_ns: int) -> "Ending":
        """Return what is known when a user asks for an export."""
        return cls(now_ns=now_ns, is_asked=True)

    @property
    def is_of_client(self) -> bool:
        """Whether an event of the client says it, and so shows that the session is alive."""
        return self.now_ns is None and not self.is_over

    def is_idle(self, since_ns: int, when: When = IDLE) -> bool:
        """Whether nothing was written for so long that the client must have ended."""
        return self.now_ns is not None and self.now_ns - since_ns > when.patience_ns

    def is_still_over(self, last_row_ns: int) -> bool:
        """Whether an event said that the session is over, and it was not resumed since."""
        patience_ns = (DONE if self.is_done else LAST_ROWS).patience_ns
        return self.over_ns is not None and last_row_ns <= self.over_ns + patience_ns

    def then(self, later: "Ending") -> "Ending":
        """Return what is remembered when an event says something later, and this was remembered before."""
        before = self.unless_resumed(later)
        over, stop = later if later.is_over else before, later if later.is_stopped else before
        return Ending(
            over_ns=over.over_ns,
            is_done=over.is_done,
            stopped_ns=stop.stopped_ns,
            stopped_bytes=stop.stopped_bytes,
            words=stop.words,
            agents=_joined(before.agents, later.agents)[-_REMEMBERED_AGENTS:],
        )

    def handled(self, now_ns: int, size: int) -> "Ending":
        """Return this as it is remembered: with the time, and the size of the file, when a worker handled it."""
        return msgspec.structs.replace(
            self,
            over_ns=now_ns if self.is_over else None,
            stopped_ns=now_ns if self.stopped_ns is None else self.stopped_ns,
            stopped_bytes=size,
        )

    def unless_resumed(self, later: "Ending") -> "Ending":
        """Return this without the end of a session of which a later event of its client shows that it was resumed."""
        if not (self.is_done and later.is_of_client):
            return self
        return msgspec.structs.replace(self, over_ns=None, is_done=False)

    def when_done(self) -> "Ending":
        """Return what to remember when all that events spoke of is acknowledged: when the session ended.

        A file can be written late. Rows from before that time still belong to the session that has ended; those of a
        session that was resumed are later.
        """
        return Ending(over_ns=self.over_ns, is_done=self.over_ns is not None)

    def known(self, remembered: "Ending", *, is_over: bool, is_killed: bool) -> "Ending":
        """Return all that is known: this, what earlier events said, and whether the session is over all the same."""
        stop = self if self.is_stopped or remembered.stopped_ns is None else remembered
        return msgspec.structs.replace(
            self,
            is_over=self.is_over or is_over or is_killed,
            is_stopped=self.is_stopped or stop is remembered,
            words=stop.words,
            stopped_ns=stop.stopped_ns,
            stopped_bytes=stop.stopped_bytes,
            agents=_joined(remembered.agents, self.agents),
            late_since_ns=None if is_killed else self.late_since_ns,  # what it was writing stays as it is
        )


def said(events: Iterable[Mapping[str, object]], late_since_ns: int | None = None) -> Ending:
    """Return what some events say together. Idle time does not matter: an event shows that the session is alive."""
    found = Ending(late_since_ns=late_since_ns)
    for event in events:
        name, agent, words, at_ns = event.get("event"), event.get("agent"), event.get("words"), _ns(event.get("at"))
        # StopFailure fires for a subagent too (2.1.325): then it names the agent, and the turn has not ended.
        if name in {"SubagentStop", "StopFailure"} and agent:
            found = msgspec.structs.replace(found, agents=(*found.agents, str(agent)))
        elif name in {"Stop", "StopFailure"}:
            words = str(words) if words and name == "Stop" else None
            found = msgspec.structs.replace(found, is_stopped=True, stopped_ns=at_ns, words=words)
        elif name == "SessionEnd":
            found = msgspec.structs.replace(found, is_over=True, over_ns=at_ns)
    return found


def table() -> str:
    """Return the table in Markdown, for the documentation."""
    rows = [("who knows it", "what it ends", "waits", "why"), ("---",) * 4]
    rows += [(row.who, row.ends, _duration(row.patience_s), row.why) for row in WHEN]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _duration(seconds: float) -> str:
    if seconds >= 600:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s" if seconds else "not"


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _ns(at_s: object) -> int | None:
    return max(0, int(at_s * 1e9)) if isinstance(at_s, (int, float)) else None
