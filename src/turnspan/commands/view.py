"""`turnspan view`: sessions and their traces as a page in the browser."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import webbrowser

import click

from turnspan.commands.declare import command, limit_option, preview_option, project_option, session_argument


@command()
@session_argument()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port to listen on (default: any free port)."
)
@project_option
@limit_option(100)
@preview_option
@click.option("--no-browser", "is_quiet", is_flag=True, help="Print the URL without opening a browser.")
def view(*, session: str | None, port: int, project: str | None, limit: int, to: str | None, is_quiet: bool) -> None:
    """View sessions and their traces in the browser.

    The newest sessions, the turns of each, and every turn as a waterfall with times,
    tokens, cost and content, exactly as it would be exported, secrets masked. With
    SESSION the page opens there. Press Ctrl-C to stop.

      turnspan view                      the sessions on this machine
      turnspan view 3f2a9c               one session, by the beginning of its id
      turnspan view ./old/3f2a….jsonl    a transcript anywhere
      turnspan view --project .          the sessions of this directory
      turnspan view --no-browser --port 8100    print the URL, for a tunnel:
                                         ssh -L 8100:127.0.0.1:8100 HOST

    Listens on localhost only; the URL contains an access key that is new each time.
    Nothing is sent, and nothing but the index of sessions is written.

    Keys: j and k or the arrows move between rows, Enter opens one, Esc goes back,
    / filters, r reloads.
    """
    from turnspan.commands.printing import print_line, remark, settings_in_force, working_directory
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
        print_line(viewer.url + where)
        if not is_quiet and webbrowser.open(viewer.ticket_url() + where):
            remark("Opened in your browser. Press Ctrl-C to stop.")
        else:
            remark("Open this URL in a browser on this machine. Press Ctrl-C to stop.")
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            return
