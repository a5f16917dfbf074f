"""A Claude Code for the pages: `-p` writes a session of one turn and calls the hooks; `plugin` commands are accepted."""

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path

PLUGIN = {
    ("plugin", "marketplace", "add"),
    ("plugin", "marketplace", "remove"),
    ("plugin", "install"),
    ("plugin", "uninstall"),
}


def rows(session, prompt):
    """Yield the rows of the session."""
    common = {"sessionId": session, "version": "2.1.325", "cwd": str(Path.cwd()), "isSidechain": False}
    now = time.time()
    usage = {"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 30}
    answer = {
        "id": "msg_1", "role": "assistant", "model": "claude-opus-4-5-20251101", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hello."}], "usage": usage,
    }  # fmt: skip
    said = [
        {"type": "user", "uuid": f"{session}-1", "parentUuid": None, "message": {"role": "user", "content": prompt}},
        {
            "type": "assistant",
            "uuid": f"{session}-2",
            "parentUuid": f"{session}-1",
            "requestId": "r1",
            "message": answer,
        },
    ]
    for later, row in enumerate(said):
        yield {**common, **row, "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now + later))}


def main():
    """Answer a prompt, or accept a plugin command."""
    if sys.argv[1:2] == ["plugin"]:
        sys.exit(0 if any(tuple(sys.argv[1 : 1 + len(words)]) == words for words in PLUGIN) else 1)
    assert sys.argv[1] == "-p"
    home, session = Path.home() / ".claude", str(uuid.uuid4())
    transcript = home / "projects" / "-clone" / f"{session}.jsonl"
    transcript.parent.mkdir(parents=True, exist_ok=True)
    transcript.write_text("".join(json.dumps(row) + "\n" for row in rows(session, sys.argv[2])))
    payload = {"session_id": session, "transcript_path": str(transcript), "cwd": str(Path.cwd())}
    hooks = json.loads((home / "settings.json").read_text())["hooks"]
    for event in ("Stop", "SessionEnd"):
        for hook in hooks[event][0]["hooks"]:
            said = json.dumps({"hook_event_name": event, "last_assistant_message": "Hello.", **payload})
            subprocess.run(["sh", "-c", hook["command"]], input=said, text=True, check=True)
    deadline = time.monotonic() + 60
    state = home / "turnspan" / "state" / f"{session}.json"
    while not state.exists() and time.monotonic() < deadline:  # so that the next command of the page sees the result
        time.sleep(0.02)
    print("Hello.")


main()
