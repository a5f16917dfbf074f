"""Shell completion of session ids."""

from __future__ import annotations

import os

from click.shell_completion import CompletionItem

from turnspan import files
from turnspan.source import sessions


def session_items(incomplete: str) -> list[CompletionItem]:
    """The ids of sessions that begin like this; a file name if it looks like a path."""
    if os.sep in incomplete or incomplete.startswith((".", "~")):
        return [CompletionItem(incomplete, type="file")]
    projects = sessions.projects_dir(files.claude_home(os.environ))
    return [
        CompletionItem(session.session_id, help=session.project)
        for session in sessions.all_sessions(projects, {})
        if session.session_id.startswith(incomplete)
    ]
