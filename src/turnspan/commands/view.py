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
@limit_option(100, "Sessions on one page of the list.")
@preview_option
@click.option("--stable", "is_stable", is_flag=True, help="Keep the port and the key, so that links work again.")
@click.option("--no-browser", "is_quiet", is_flag=True, help="Print the URL without opening a browser.")
def view(
    *,
    session: str | None,
    port: int,
    project: str | None,
    limit: int,
    to: str | None,
    is_stable: bool,
    is_quiet: bool,
) -> None:
    """View sessions and their traces in the browser.

    The sessions, the turns of each as a conversation or as traces, and every turn
    as a waterfall with times, tokens, cost and content, exactly as it would be
    exported, secrets masked. The page grows while Claude works. With SESSION it
    opens there. Press Ctrl-C to stop.

      turnspan view                      the sessions on this machine
      turnspan view 3f2a9c               one session, by the beginning of its id
      turnspan view ./old/3f2a….jsonl    a transcript anywhere
      turnspan view --project .          the sessions of this directory
      turnspan view --no-browser --port 8100    print the URL, for a tunnel:
                                         ssh -L 8100:127.0.0.1:8100 HOST

    Listens on localhost only; the URL contains an access key that is new each time.
    Nothing is sent, and nothing but the index of sessions is written unless you use
    --stable: it keeps the port and the key in ~/.claude/turnspan/view.json, readable
    only by you, so that links to a session, a turn or a span work after a restart.
    Delete the file for a new key. While the viewer is not running, another user of
    the machine could listen on its port and learn the key from a link that you open.

    Keys: j and k or the arrows move between rows, Enter opens one, Left and Right
    collapse and expand, z zooms to a span and Z out, c and t show the conversation
    or the traces, d moves to the panel of a span, Esc goes back, / filters, r reloads.
    """
    from turnspan.commands.printing import print_line, remark, settings_in_force, working_directory
    from turnspan.delivery.destinations import destination_named
    from turnspan.page.address import Address, keep_address, new_key, stable_address
    from turnspan.page.server import Viewer
    from turnspan.source.find import find_session, require_transcript
    from turnspan.source.sessions import projects_dir

    config = settings_in_force()
    destination = destination_named(config, to)
    address = stable_address(config.home) if is_stable else Address(0, new_key())
    with Viewer(
        config, destination, port=port or address.port, key=address.key, limit=limit, project=project
    ) as viewer:
        if is_stable:
            keep_address(config.home, Address(viewer.port, address.key))
        where = ""
        if session is not None:
            found = find_session(projects_dir(config.claude_home), session, working_directory())
            require_transcript(found.path)
            where = viewer.put(found)
        else:
            viewer.indexing.prepare()
        print_line(viewer.url + where)
        if not is_quiet and webbrowser.open(viewer.ticket_url() + where):
            remark("Opened in your browser. Press Ctrl-C to stop.")
        else:
            remark("Open this URL in a browser on this machine. Press Ctrl-C to stop.")
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            viewer.indexing.abandon()
