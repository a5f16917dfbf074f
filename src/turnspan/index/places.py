"""How far a session was read for the index, and where its rows are read again: arithmetic on `Progress`.

A session's rows come from three stages of reading it (`source.reader`):

| stage | rows | when the session has grown |
|---|---|---|
| settled | turns that a later row sealed | stay |
| end | turns that only the end of the file sealed | are read again |
| late | subagents that were not exported with a turn, in groups | are read again |

So an update reads from the end of the settled stage. A late group is kept with its own progress: a single turn can be
read again as if all other groups had been read already (`seek`).

A `Progress` lists all subagents of a session, and there can be thousands. So what is stored for a piece or a group is
the difference to what precedes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.forks import Neighbours
from turnspan.source.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder(Progress).decode
decode_neighbours: Final = msgspec.msgpack.Decoder(Neighbours).decode


class Place(msgspec.Struct):
    """Where the settled rows of a session end."""

    progress: Progress = Progress()
    since_piece: Progress = Progress()  # the difference to where the piece begins
    position: int = 0  # of the next turn
    piece: int = 0
    in_piece: int = 0  # of the next turn
    spans: int = 0  # in the piece so far


def difference(after: Progress, before: Progress) -> Progress:
    """Return a progress with only the subagents that differ."""
    agents = {name: new for name, new in after.agents.items() if _differs(before.agents.get(name), new)}
    launched = {name: new for name, new in after.launched.items() if _differs(before.launched.get(name), new)}
    return Progress(after.main, after.is_own, agents, launched, after.left_out)


def _differs(old: object, new: object) -> bool:
    return old is not new and old != new


def merged(before: Progress, change: Progress) -> Progress:
    """Return the progress after a difference."""
    agents = {**before.agents, **change.agents} if change.agents else before.agents
    launched = {**before.launched, **change.launched} if change.launched else before.launched
    return Progress(change.main, change.is_own, agents, launched, change.left_out)


def with_late(settled: Progress, groups: Iterable[Progress]) -> Progress:
    """Return the progress at which the settled stage ends, as if these late groups had been read."""
    agents, launched = dict(settled.agents), dict(settled.launched)
    for group in groups:
        agents |= group.agents
        launched |= group.launched
    return Progress(settled.main, settled.is_own, agents, launched, settled.left_out)
