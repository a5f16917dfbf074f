"""Stories with dialogs in a terminal: permissions, questions, rewind, resume."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .client import version_tuple
from .dialogs import PROCEED, choose, option, options, point_at, press_until
from .story import TYPED, scenario
from .terminal import wait_until

if TYPE_CHECKING:
    from .stage import Stage, Typed

RESTORE, SUMMARIZE = "Restore conversation", "Summarize from here"


@scenario(since="2.0.36", weight=3)
def rewound(stage: Stage) -> None:
    """The user rewinds to the second prompt, then to the first; the abandoned rows remain in the file."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    stage.finished(client.type("{error} second"), 1)
    _rewind(client, "second")
    stage.finished(client.type("{hello} second, otherwise"), 0)
    _rewind(client, "first")
    stage.finished(client.type("{tools} from the beginning"), 2)
    if version_tuple(stage.version) >= (2, 1, 325):
        _rewind(client, "from the beginning", SUMMARIZE)
        stage.finished(client.type("{hello} after a summary"), 0)
    client.quit()
    stage.run("{hello} continued", "--continue")


def _rewind(client: Typed, before: str, how: str = RESTORE) -> None:
    """Rewind the conversation to a prompt; the client then puts its text into the input line."""
    client.enter("/rewind", until=lambda: client.shows("(current)"))
    point_at(client, "Up", before)
    press_until(client, "Enter", lambda: bool(options(client)))
    choose(client, how)
    if how == SUMMARIZE:
        client.wait_shows("Summarized conversation", 30)
    wait_until(lambda: before in client.line(), "the prompt in the input line", 30)
    client.empty_line()


@scenario(since="2.0.76", weight=2)
def decided(stage: Stage) -> None:
    """The user denies a command, denies another with a comment, answers a question and switches the model."""
    client = stage.terminal("--permission-mode", "default")
    stage.api.wait_response(client.type("{touch} first"))
    _deny(client)
    turn = client.type("{touch} second")
    stage.api.wait_response(turn)
    _deny(client, "leave it as it is")
    stage.finished(turn, 1)
    turn = client.type("{ask} which one")
    choose(client, "Violet")
    stage.finished(turn, 1)
    _switch_model(client, "haiku")
    stage.finished(client.type("{thinking} with it"), 0)
    client.quit()


def _deny(client: Typed, words: str = "") -> None:
    """Deny a command, optionally with a comment; up to 2.0.76 the option for that is a text field."""
    wait_until(lambda: client.shows(PROCEED), "the question")
    number = option(client, "No", "Type here")
    is_line = options(client)[number].startswith("Type here")
    if not words:
        press_until(client, "Escape" if is_line else number, lambda: not client.shows(PROCEED))
        return
    point_at(client, "Down", f"{number}. ")
    if not is_line:
        press_until(client, "Tab", lambda: client.shows("tell Claude"))
    client.enter(words, until=lambda: not client.shows(PROCEED))


def _switch_model(client: Typed, name: str) -> None:
    """Switch the model; the newest clients ask for confirmation, because the cache is lost."""
    client.empty_line()  # a number key that was pressed once too often
    client.enter(f"/model {name}", until=lambda: client.shows("Switch model?") or client.shows("Set model to"))
    if client.shows("Switch model?"):
        choose(client, "Yes")
        client.wait_shows("Set model to")


@scenario(since=TYPED, weight=2)
def typed_resume(stage: Stage) -> None:
    """A session is resumed by its id in another terminal."""
    client = stage.terminal()
    session = stage.finished(client.type("{tools} first"), 2)["payload"]["session_id"]
    client.quit()
    client = stage.terminal("--resume", session)
    stage.finished(client.type("{error} resumed"), 1)
    client.quit()


@scenario(since=TYPED, weight=2)
def clear_and_back(stage: Stage) -> None:
    """`/clear` starts a new session, and `/resume` returns to the earlier one: one process, two transcripts."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    before = time.time()
    client.enter("/clear", until=lambda: any(h["t"] > before for h in stage.hooks("SessionStart")))
    stage.finished(client.type("{hello} second"), 0)
    client.enter("/resume", until=lambda: client.shows("Resume"))
    before = time.time()
    press_until(client, "Enter", lambda: any(h["t"] > before for h in stage.hooks("SessionStart")))
    stage.finished(client.type("{error} back in the first"), 1)
    client.quit()
