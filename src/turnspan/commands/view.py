"""`turnspan view`: sessions and their traces as a page in the browser."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from turnspan.commands.completion import session_items

    return session_items(incomplete)


@click.argument("session", required=False, shell_complete=_complete_session)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Listen here; any free port if not given."
)
@click.option("--project", metavar="P", help="Only sessions of a directory and below, or with P in their path.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="How many sessions."
)
@click.option("--to", metavar="DESTINATION", help="As it would leave for this destination; the first one if not given.")
@click.option("--no-browser", "is_quiet", is_flag=True, help="Only print the address.")
def view(*, session: str | None, port: int, project: str | None, limit: int, to: str | None, is_quiet: bool) -> None:
    """Sessions and their traces as a page in the browser.

    The newest sessions, the turns of each, and every turn as a waterfall: what
    took how long, tokens, cost, and all that was said, as it would leave this
    machine, secrets masked. With SESSION the page opens there. Ctrl-C ends it.

      turnspan view                      the sessions on this machine
      turnspan view 3f2a9c               one of them, by the beginning of its id
      turnspan view ./old/3f2a….jsonl    a transcript anywhere
      turnspan view --project .          those of this directory
      turnspan view --no-browser --port 8100    the address, for a tunnel:
                                         ssh -L 8100:127.0.0.1:8100 HOST

    Only this machine is answered, and only who has the address: it holds a key
    that is new each time. Nothing is written, and nothing is sent.

    In the page: j and k or the arrows go through the rows, Enter opens one, Esc
    goes back, / filters, r reads again.
    """
    from turnspan.commands.printing import answer, remark, settings_in_force, working_directory
    from turnspan.delivery.destinations import destination_named
    from turnspan.source.sessions import find_session, projects_dir
    from turnspan.source.validate import require_transcript
    from turnspan.view.server import Viewer

    config = settings_in_force()
    destination = destination_named(config, to)
    with Viewer(config, destination, port=port, limit=limit, project=project) as viewer:
        where = ""
        if session is not None:
            found = find_session(projects_dir(config.claude_home), session, working_directory())
            require_transcript(found.path)
            where = viewer.put(found)
        answer(viewer.url + where)
        if not is_quiet and webbrowser.open(viewer.ticket_url() + where):
            remark("it is open in your browser; Ctrl-C ends it")
        else:
            remark("open this address in a browser on this machine; Ctrl-C ends it")
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            return
