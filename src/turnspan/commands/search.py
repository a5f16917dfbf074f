"""`turnspan search`: words in the content of all sessions."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import click

from turnspan.commands.declare import command, json_flag
from turnspan.commands.selection import TimeArgument


@command(takes_dashes=True)
@click.argument("words", nargs=-1, required=True)
@click.option("--since", type=TimeArgument(), metavar="WHEN", help="Only turns started since this time.")
@click.option("--until", type=TimeArgument(is_end=True), metavar="WHEN", help="Only turns started before this time.")
@click.option("--project", metavar="P", help="Only turns in this directory and below, or with P in its path.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Maximum number of turns."
)
@json_flag("One JSON object per turn and line")
@click.pass_context
def search(
    ctx: click.Context,
    *,
    words: tuple[str, ...],
    since: int | None,
    until: int | None,
    project: str | None,
    limit: int,
    is_json: bool,
) -> None:
    """Search the content of all sessions, newest turns first.

      turnspan search flaky test               both words
      turnspan search '"connection refused"'   an exact phrase
      turnspan search 'migrat*' --project .    the beginning of a word
      turnspan search cache -redis             one word without the other

    Prompts, answers, thinking, and the input and output of tools are searched as
    they would be exported, secrets masked: at most the first 20,000 characters of
    each prompt, answer and thought, and the first 4,000 of each input and output of
    a tool. All words must be in the same text. Upper and lower case are the same.

    Exit code: 1 if nothing was found, or a session could not be read.

    --json, a line for each turn:
      session_id title project branch trace_id span_id turn start
      kind               prompt, answer, thinking, tool_input, tool_output, title
      context            text around the words
      matches            the parts of it that match
      others             number of other texts of the turn that match
    """
    from turnspan.commands.printing import print_line, print_lines, print_record, remark, settings_in_force, width
    from turnspan.commands.progress import progress
    from turnspan.commands.records import hit_record
    from turnspan.index import opened
    from turnspan.index.search import parsed, short_id
    from turnspan.index.search import search as find
    from turnspan.index.stats import Slice, projects_named
    from turnspan.page.hits import hit_lines
    from turnspan.text import count

    for word in words:
        if word.startswith("--") and len(word) > 2:
            raise click.NoSuchOption(word, ctx=ctx)
    text = " ".join(words)
    query = parsed(text)
    config = settings_in_force()
    with opened(config, show=progress) as index:
        projects = projects_named(index.connection, project) if project is not None else None
        found = find(index.connection, query, Slice(since_ns=since, until_ns=until, projects=projects), limit=limit)
        for hit in found.hits:
            if is_json:
                print_record(hit_record(hit))
            else:
                print_lines(hit_lines(hit, short_id(index.connection, hit.session_id), width()))
                print_line("")
        for why in (*index.remarks, *(f"skipped: {why}" for why in index.unreadable.values())):
            remark(why)
    if not found.hits:
        remark(f"nothing found for {text!r}")
    elif found.turns > len(found.hits):
        remark(f"{count(found.turns, 'turn')} found; --limit shows more of them")
    ctx.exit(1 if index.unreadable or not found.hits else 0)
