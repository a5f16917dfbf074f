"""The server behind the page: its records, and who gets them."""

import http.client
import json
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rows import Writer

from turnspan.delivery import state
from turnspan.page.api import OpenSession
from turnspan.page.preview import Preview
from turnspan.page.server import Viewer
from turnspan.settings.config import load_config
from turnspan.source import reader
from turnspan.source.sessions import SessionFile, all_sessions, session_of

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SESSION = "5e55104a-0000-4000-8000-000000000001"
SECRET = "sk-ant-api03-" + "Zx9" * 31 + "AA"


def made(home, *prompts, session=SESSION):
    """A home with one session that has these turns."""
    writer = Writer(session, tag=session[-4:])  # ids of its own: equal ids would be a copy
    for prompt in prompts:
        writer.prompt(prompt)
        writer.say(f"as for {prompt[:20]}: done")
    directory = home / "projects" / "-home-ada-loom"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{session}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    return path


def settings(home):
    """The settings of this home."""
    return load_config({"CLAUDE_CONFIG_DIR": str(home), "HOME": str(home)})


@contextmanager
def viewing(home, **options):
    """A page that is being served."""
    config = settings(home)
    with Viewer(config, config.destinations[0], **options) as viewer:
        thread = threading.Thread(target=viewer.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield viewer
        finally:
            viewer.shutdown()
            thread.join()


def ask(viewer, path, method="GET", **headers):
    """One request; its status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", viewer.server_address[1], timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def records_of(viewer, what):
    """The records of a path, from an index that is complete."""
    while True:
        status, _, body = ask(viewer, f"/{viewer.key}/{what}")
        assert status == 200
        found = [json.loads(line) for line in body.splitlines()]
        if not found or found[0].get("is") != "reading":
            return found


# ---- access


def test_nothing_is_served_without_the_key(tmp_path):
    """Another program or user on this machine can connect, but gets nothing."""
    made(tmp_path, "hello")
    with viewing(tmp_path) as viewer:
        for path in (
            "/",
            "/sessions",
            f"/{viewer.key[:-1]}/sessions",
            f"/{viewer.key}x/",
            "//",
            "/open/",
            "/open/None",
        ):
            status, _, body = ask(viewer, path)
            assert status == 404, path
            assert b"hello" not in body
        assert ask(viewer, f"/{viewer.key}/")[0] == 200


def test_another_host_name_is_refused(tmp_path):
    """A web site whose name resolves to this machine is refused, even with the key."""
    with viewing(tmp_path) as viewer:
        port = viewer.server_address[1]
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example:80", "", f"127.0.0.1:{port}@evil.example",
                     f"evil.example@127.0.0.1:{port}", "localhost:"):  # fmt: skip
            assert ask(viewer, f"/{viewer.key}/", Host=host)[0] == 403
        assert ask(viewer, f"/{viewer.key}/", Host="localhost:9")[0] == 200  # through a tunnel from another port


def test_a_ticket_opens_the_page_once(tmp_path):
    """The URL in the browser's arguments, which all users can read, works once."""
    with viewing(tmp_path) as viewer:
        ticket = urlsplit(viewer.ticket_url()).path
        assert viewer.key not in ticket
        status, headers, _ = ask(viewer, ticket)
        assert (status, headers["Location"]) == (303, f"/{viewer.key}/")
        assert ask(viewer, ticket)[0] == 404


def test_the_page_loads_nothing_from_other_servers(tmp_path):
    """Its content security policy allows only its own files and no frames; it is not cached and sends no referrer."""
    with viewing(tmp_path) as viewer:
        for name in ("", "main.js", "session.js", "css/base.css"):
            status, headers, body = ask(viewer, f"/{viewer.key}/{name}")
            assert status == 200
            assert headers["Content-Security-Policy"].startswith(
                "default-src 'none'; script-src 'self'; style-src 'self'"
            )
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["Cache-Control"] == "no-store"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert b"http://" not in body
            assert b"https://" not in body


def test_it_only_reads(tmp_path):
    """POST is not supported, and viewing writes no file except the index."""
    made(tmp_path, "hello")
    with viewing(tmp_path) as viewer:
        for method in ("POST", "PUT", "DELETE"):
            assert ask(viewer, f"/{viewer.key}/sessions", method)[0] == 501
        records_of(viewer, "sessions")
        records_of(viewer, f"session/{SESSION}")
        records_of(viewer, f"trace/{SESSION}?at=0")
    written = {path.name.partition(".")[0] for path in tmp_path.rglob("*") if "projects" not in path.parts}
    assert written <= {"projects", "turnspan", "index"}


@pytest.mark.parametrize("name", ["..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "....jsonl", "%00", "~root", "-"])
def test_only_session_ids_are_accepted(tmp_path, name):
    """The page can request sessions, not files."""
    made(tmp_path, "hello")
    with viewing(tmp_path) as viewer:
        for what in (f"session/{name}", f"trace/{name}?at=0"):
            assert records_of(viewer, what) == [{"is": "error", "text": "that is not a session id", "hint": ""}]
        assert ask(viewer, f"/{viewer.key}/../../etc/passwd")[0] == 404
        for file in ("server.py", "../server.py", "css", "css/", "css/../main.js", "css%2Fbase.css", "./main.js"):
            assert ask(viewer, f"/{viewer.key}/{file}")[0] == 404


# ---- records


def test_the_sessions_are_those_of_the_terminal(tmp_path, command, monkeypatch):
    """The page lists what `turnspan sessions` lists, in the same order."""
    made(tmp_path, "hello", "and then")
    made(tmp_path, "another", session="5e55104a-0000-4000-8000-000000000002")
    with viewing(tmp_path) as viewer:
        records = records_of(viewer, "sessions")[0]["rows"]
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    listed = [json.loads(line) for line in command("sessions", "--json")[1].splitlines()]
    assert [one["session"] for one in records] == [one["session_id"] for one in listed]
    assert [one["turns"] for one in records] == [one["turns"] for one in listed]
    assert [one["title"] for one in records] == [one["title"] for one in listed]


@pytest.mark.parametrize("story", sorted(path.name for path in FIXTURES.iterdir() if (path / "projects").is_dir()))
def test_every_turn_of_every_story_can_be_opened(tmp_path, story, monkeypatch):
    """Every turn can be opened, wherever its piece begins, with the same spans as `show`."""
    monkeypatch.setattr(reader, "PIECE_SPANS", 2)  # many pieces, as a long session has
    shutil.copytree(FIXTURES / story / "projects", tmp_path / "projects")
    config = settings(tmp_path)
    for session in all_sessions(tmp_path / "projects"):
        traces = [one.trace for one in Preview(session, config, config.destinations[0]).traces() if one.trace.spans]
        session_view = OpenSession(session, config, config.destinations[0])
        turns = [record for record in session_view.records() if record["is"] == "turn"]
        assert [turn["at"] for turn in turns] == list(range(len(traces)))
        opened = [session_view.trace_record(turn["at"], turn["trace"]) for turn in turns]
        assert sorted((one["trace"], sorted(span["id"] for span in one["spans"])) for one in opened) == sorted(
            (trace.trace_id.hex(), sorted(span.span_id.hex() for span in trace.spans)) for trace in traces
        )
        for turn, one in zip(turns, opened, strict=True):
            assert turn["trace"] == one["trace"]
            assert all(0 <= span["from_ms"] <= one["ms"] for span in one["spans"])
            assert all(span["from_ms"] + span["ms"] <= one["ms"] + 1e-6 for span in one["spans"])
            assert session_view.chat_record(turn["at"], turn["trace"])["trace"] == one["trace"]
            for span in one["spans"]:
                shown = session_view.span_record(turn["at"], turn["trace"], span["id"])
                assert (shown["id"], shown["name"]) == (span["id"], span["name"])


def test_masked_secrets_never_reach_the_page(tmp_path):
    """A secret in a prompt is masked and counted on the page, too."""
    made(tmp_path, f"use the key {SECRET} for it")
    with viewing(tmp_path) as viewer:
        turn = next(one for one in records_of(viewer, f"session/{SESSION}") if one["is"] == "turn")
        where = f"{SESSION}?at=0&trace={turn['trace']}"
        root = records_of(viewer, f"trace/{where}")[0]["spans"][0]["id"]
        asked = (f"session/{SESSION}", f"trace/{where}", f"chat/{where}", f"span/{where}&span={root}")
        answers = [ask(viewer, f"/{viewer.key}/{what}")[2].decode() for what in asked]
        answers.append(json.dumps(records_of(viewer, "sessions")))
    assert all(SECRET not in answer for answer in answers)
    assert all("[redacted:" in answer for answer in answers)
    assert json.loads(answers[0].splitlines()[1])["masked"] > 0


def test_a_session_is_downloaded_as_one_file(tmp_path):
    """The page offers the export: what `turnspan export` writes, masked, as a file to save."""
    made(tmp_path, f"use the key {SECRET} for it")
    with viewing(tmp_path) as viewer:
        for form, kind in (("html", "text/html"), ("md", "text/markdown")):
            status, headers, body = ask(viewer, f"/{viewer.key}/export/{SESSION}.{form}")
            assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
            assert headers["Content-Disposition"] == f'attachment; filename="{SESSION[:8]}.{form}"'
            assert b"[redacted:" in body
            assert SECRET.encode() not in body
        for name in (f"{SESSION}.json", SESSION, "unknown.html", "..%2F..%2Fx.html", ".html", ""):
            assert ask(viewer, f"/{viewer.key}/export/{name}")[0] == 404


def test_a_rewritten_file_is_not_taken_for_the_old_one(tmp_path):
    """If the file has changed, opening a turn is an error; another turn is never shown in its place."""
    path = made(tmp_path, "hello", "and then")
    with viewing(tmp_path) as viewer:
        turns = [one for one in records_of(viewer, f"session/{SESSION}") if one["is"] == "turn"]
        assert len(turns) == 2
        writer = Writer(SESSION, tag="b")
        writer.prompt("something else")
        writer.say("indeed")
        path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
        for at in (0, 1, 7):
            for turn in turns:
                (answer,) = records_of(viewer, f"trace/{SESSION}?at={at}&trace={turn['trace']}")
                assert answer["text"] == "the transcript has changed"
        assert [one["gist"] for one in records_of(viewer, f"session/{SESSION}") if one["is"] == "turn"] == [
            "something else"
        ]


def test_an_unknown_session_is_an_error(tmp_path):
    """The URL of a session that does not exist gives an error that names it."""
    made(tmp_path, "hello")
    with viewing(tmp_path) as viewer:
        for name in ("0000dead", SESSION[:8], "projects"):
            (answer,) = records_of(viewer, f"session/{name}")
            assert answer["is"] == "error"
            assert f"unknown session '{name}'" in answer["text"]
        for path in ("//[", f"/{viewer.key}/trace/{SESSION}", f"/{viewer.key}/trace/{SESSION}?at=" + "9" * 5000):
            assert ask(viewer, path)[0] == 404


def test_a_session_without_turns_has_a_note(tmp_path):
    """A file without turns gives a note."""
    path = made(tmp_path, "hello")
    path.write_text(json.dumps({"type": "summary", "summary": "x", "leafUuid": "y"}) + "\n")
    config = settings(tmp_path)
    opened = OpenSession(SessionFile(SESSION, path), config, config.destinations[0])
    note, end = opened.records()
    assert note == {"is": "note", "text": "this session has no turns yet"}
    assert (end["is"], end["since"]) == ("end", 0)


def test_a_disabled_session_is_marked_as_not_exported(tmp_path):
    """The page shows a session that was forgotten, and says in its head and in a note that it is not exported."""
    path, config = made(tmp_path, "hi"), settings(tmp_path)
    state.save(config.home, state.Checkpoint(session_id=SESSION, is_off=True))
    head, *_, note, _ = OpenSession(SessionFile(SESSION, path), config, config.destinations[0]).records()
    assert head["facts"]["Export"] == "nowhere: this session is disabled"
    assert note == {"is": "note", "text": "this session is disabled: it is not exported"}


def test_a_file_with_any_name_can_be_viewed(tmp_path):
    """A transcript named on the command line is shown whatever its name; the page cannot request that name as a path."""
    path = made(tmp_path, "hello")
    odd = path.with_name("my copy (1).jsonl")
    odd.write_text(path.read_text().replace(f'"sessionId": "{SESSION}"', '"sessionId": null'))
    path.unlink()
    with viewing(tmp_path) as viewer:
        where = viewer.put(session_of(odd))
        assert where == "#/s/my%20copy%20%281%29"
        assert [one["is"] for one in records_of(viewer, f"session/{where[4:]}")] == [
            "head", "turn", "foot", "end",
        ]  # fmt: skip
        trace = records_of(viewer, f"session/{where[4:]}")[1]["trace"]
        assert records_of(viewer, f"trace/{where[4:]}?at=0&trace={trace}")[0]["spans"][0]["gist"] == "hello"


def test_a_port_in_use_is_an_error(tmp_path, command, monkeypatch):
    """The error says that the port is in use, and what to do."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    with viewing(tmp_path) as viewer:
        code, _, err = command("view", "--no-browser", "--port", str(viewer.server_address[1]))
    assert code == 1
    assert f"cannot listen on port {viewer.server_address[1]}: Address already in use" in err
    assert "omit it to pick a free one" in err


def test_view_prints_the_url(tmp_path, command, monkeypatch):
    """The command prints the URL and opens the browser with a ticket; Ctrl-C stops it."""
    made(tmp_path, "hello")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)

    def interrupted(_self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Viewer, "serve_forever", interrupted)
    code, out, err = command("view", "5e55")
    assert code == 0
    assert out.startswith("http://127.0.0.1:")
    assert out.endswith(f"/#/s/{SESSION}\n")
    assert opened[0].endswith(f"#/s/{SESSION}")
    assert "/open/" in opened[0]
    assert "Ctrl-C" in err
    assert command("view", "unknown")[0] == 1
    assert len(opened) == 1
    assert command("view", "--no-browser")[0] == 0
    assert len(opened) == 1
