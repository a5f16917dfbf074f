"""The file of the index: who may read it, what is in it, and what happens if it cannot be used."""

import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from random import Random

import pytest
from rows import Writer, agent_writer, save_agent, tool_id

from index.dumps import content
from turnspan.delivery import state
from turnspan.delivery.destinations import identity_of
from turnspan.errors import StateError
from turnspan.index import NAME, Filter, Scope, count_sessions, forget, list_sessions, opened
from turnspan.settings.config import load_config
from turnspan.source.progress import Position, Progress
from turnspan.transcript.carry import Carry

SESSION = "5e55104a-0000-4000-8000-000000000001"


def session_of(number, **options):
    """Return a writer for one of several sessions."""
    return Writer(session=f"{number:08}-0000-4000-8000-000000000001", tag=f"s{number}", **options)


@pytest.fixture
def project(claude_home):
    """A project directory for transcripts."""
    directory = claude_home / "projects" / "-home-ada-loom"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def path(claude_home):
    """The path of the index."""
    return claude_home / "turnspan" / NAME


def saved(project, *words, number=1, **options):
    """Save a session with a turn for each of some words."""
    writer = session_of(number, **options)
    for each in words:
        writer.turn(each, f"Answer to {each}.")
    return writer.save(project)


def index_of():
    """Return the content of the index, and what it remarked."""
    with opened(load_config(os.environ)) as index:
        return content(index.connection), index.remarks, index.is_in_memory


def bytes_of(path):
    """Return everything that is in the files of the index."""
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal")]
    return b"".join(file.read_bytes() for file in files if file.exists())


# ---- the file


def test_only_its_owner_can_read_it(project, path):
    """The index is 0600, its write-ahead log too, and its directory 0700."""
    saved(project, "hello")
    with opened(load_config(os.environ)) as index:
        assert not index.is_in_memory
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) in {0o600, 0o700}, file
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_did_not_change_is_not_opened(project, path):
    """An index that is up to date is recognised from a listing: no transcript is opened, nothing is written."""
    transcript = saved(project, "hello")
    first = index_of()
    before = path.stat().st_mtime_ns
    transcript.chmod(0)  # a reader that is not root could not open it
    assert index_of() == first
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("harm", ["text", "head", "middle", "letters", "empty tables"])
def test_a_damaged_index_is_rebuilt(project, path, harm):
    """A file that is damaged anywhere is built again, with a remark, and has the same rows."""
    for number in range(20):
        saved(project, f"hello {number}", number=number)
    expected = index_of()[0]
    if harm == "text":
        path.write_bytes(b"this is not a database, whatever its name is\n" * 100)
    elif harm == "head":
        path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    elif harm == "middle":
        data = path.read_bytes()
        path.write_bytes(data[:4096] + Random(1).randbytes(len(data) - 4096))
    elif harm == "letters":
        with closing(sqlite3.connect(path)) as connection:
            [value] = connection.execute("SELECT value FROM meta WHERE key = 'fingerprint'").fetchone()
        path.write_bytes(path.read_bytes().replace(value.encode(), b"\xff" * len(value)))
    else:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE meta")
        connection.commit()
        connection.close()
    found, remarks, is_in_memory = index_of()
    assert found == expected
    assert not is_in_memory
    assert "was damaged" in remarks[0]
    assert index_of() == (expected, [], False)


def test_damage_that_only_a_query_finds_is_repaired_by_the_next_command(project, path):
    """The first command says what to do, and the index is built again."""
    saved(project, "hello")
    expected = index_of()
    path.write_bytes(path.read_bytes().replace(b"hello", b"\xff" * 5))
    with pytest.raises(StateError, match="run the command again"):
        index_of()
    assert index_of() == expected


def test_the_file_of_another_program_is_not_touched(project, path):
    """A database that turnspan did not write stays as it is; the command works with an index in memory."""
    saved(project, "hello")
    expected = index_of()[0]
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine(a)")
    connection.commit()
    connection.close()
    path.chmod(0o600)
    before = path.read_bytes()
    found, remarks, is_in_memory = index_of()
    assert (found, is_in_memory) == (expected, True)
    assert "written by another program" in remarks[0]
    assert path.read_bytes() == before


def test_the_index_of_a_newer_turnspan_is_not_touched(project, path):
    """A newer turnspan's index stays as it is."""
    saved(project, "hello")
    expected = index_of()[0]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    found, remarks, is_in_memory = index_of()
    assert (found, is_in_memory) == (expected, True)
    assert "newer turnspan" in remarks[0]
    assert path.read_bytes() == before


def test_a_locked_index_is_a_remark(project, path, monkeypatch):
    """While another program holds the database, the command works with an index in memory."""
    monkeypatch.setattr("turnspan.index.store._BUSY_S", 0.05)
    saved(project, "hello")
    index_of()
    saved(project, "hello", "again")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    found, remarks, is_in_memory = index_of()
    assert is_in_memory
    assert "locked" in remarks[0]
    connection.execute("ROLLBACK")
    connection.close()
    assert index_of() == (found, [], False)


def test_a_link_is_not_followed(project, path, tmp_path):
    """A path that is a link is refused, and its target is not written to."""
    saved(project, "hello")
    target = tmp_path / "elsewhere"
    path.symlink_to(target)
    _, remarks, is_in_memory = index_of()
    assert is_in_memory
    assert "not a regular file" in remarks[0]
    assert not target.exists()


def test_a_disk_that_is_read_only(project, path):
    """If the directory cannot be written to, the command works with an index in memory."""
    if os.geteuid() == 0:
        pytest.skip("root can write everywhere")
    saved(project, "hello")
    path.parent.chmod(0o500)
    try:
        found, remarks, is_in_memory = index_of()
    finally:
        path.parent.chmod(0o700)
    assert is_in_memory
    assert remarks
    assert found


def test_it_can_be_switched_off(project, path, monkeypatch):
    """With `index = false` no file is made, and commands give the same."""
    saved(project, "hello")
    expected = index_of()[0]
    path.unlink()
    monkeypatch.setenv("TURNSPAN_INDEX", "false")
    assert index_of() == (expected, [], True)
    assert not path.exists()


def test_other_settings_rebuild_it(project, path, monkeypatch):
    """If the settings that decide its content change, the index is built again by them."""
    saved(project, "a very special prompt")
    assert "a very special prompt" in str(index_of()[0])
    monkeypatch.setenv("TURNSPAN_CAPTURE", "metadata")
    assert "special" not in str(index_of()[0])
    assert b"special" not in bytes_of(path)


def test_the_credentials_of_another_environment_do_not_rebuild_it(project, path, monkeypatch):
    """Only a credential that was not masked before makes the index be built again."""
    saved(project, "hello")

    def made():
        with opened(load_config(os.environ)) as index:
            return index.connection.execute("SELECT value FROM meta WHERE key = 'credentials'").fetchone()[0]

    assert made() == ""
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-" + "1" * 30)
    with_key = made()
    assert with_key
    assert b"sk-lf-" not in bytes_of(path)
    monkeypatch.delenv("LANGFUSE_PUBLIC_KEY")
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    assert made() == with_key


# ---- what is in it


def test_a_directory_that_is_switched_off_has_figures_and_no_texts(project, path, claude_home, tmp_path):
    """Sessions of a directory that is switched off are counted, but their texts are not in the file."""
    work = tmp_path / "work"
    work.mkdir()
    saved(project, "unspeakable", cwd=str(work))
    assert b"unspeakable" in bytes_of_index(path)
    (claude_home / "turnspan" / "config.toml").write_text(f'off = ["{work}"]\n')
    with opened(load_config(os.environ)) as index:
        (row,) = list_sessions(index, Filter())
        assert (row.is_off, row.capture, row.title, row.tally.turns) == (True, "metadata", "", 1)
        assert index.connection.execute("SELECT count(*) FROM text").fetchone() == (0,)
    assert b"unspeakable" not in bytes_of(path)
    (claude_home / "turnspan" / "config.toml").write_text("")
    assert b"unspeakable" in bytes_of_index(path)
    (work / ".claude").mkdir()
    (work / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    with opened(load_config(os.environ)) as index:
        assert list_sessions(index, Filter())[0].is_off
        assert index.connection.execute("SELECT count(*) FROM text").fetchone() == (0,)


def bytes_of_index(path):
    """Bring the index up to date and return its bytes."""
    with opened(load_config(os.environ)):
        pass
    return bytes_of(path)


def test_a_forgotten_session_is_not_in_its_bytes(project, path):
    """`forget` removes the texts of a session from the bytes of the file; other sessions stay."""
    saved(project, "unspeakable secrets of the guild", number=1)
    saved(project, "common knowledge", number=2)
    assert b"unspeakable" in bytes_of_index(path)
    config = load_config(os.environ)
    session_id = f"{1:08}-0000-4000-8000-000000000001"
    assert forget(config, session_id)
    assert b"unspeakable" not in bytes_of(path)
    assert b"common" in bytes_of(path)
    assert not forget(config, "unknown")
    state.save(config.home, state.Checkpoint(session_id=session_id, is_off=True))
    assert b"unspeakable" not in bytes_of_index(path)
    with opened(config) as index:
        assert count_sessions(index, Filter()) == 2


def test_the_command_forgets_in_the_index(project, path, command):
    """`turnspan forget` deletes from the index, too, and says so."""
    saved(project, "unspeakable")
    assert b"unspeakable" in bytes_of_index(path)
    code, out, _ = command("forget", f"{1:08}-0000-4000-8000-000000000001", "--yes")
    assert "the index: deleted" in out
    assert code == 0
    assert b"unspeakable" not in bytes_of(path)


def test_what_was_sent_is_in_it(project):
    """How many turns each destination has is read from the checkpoints, and follows them."""
    saved(project, "one", "two")
    config = load_config(os.environ)
    identity = identity_of(config.destinations[0])
    session_id = f"{1:08}-0000-4000-8000-000000000001"
    for turns in (0, 1, 2):
        if turns:
            progress = Progress(main=Position(carry=Carry(turns=turns)))
            cursors = {identity: state.Cursor(progress=progress)}
            state.save(config.home, state.Checkpoint(session_id=session_id, destinations=cursors))
        with opened(config) as index:
            (row,) = list_sessions(index, Filter())
            assert row.sent == ({identity: turns} if turns else {})


def test_sessions_are_filtered_sorted_and_paged(project):
    """The list can be restricted, sorted by any figure, and read page by page."""
    for number, count in ((1, 3), (2, 1), (3, 2)):
        saved(project, *["hi"] * count, number=number)
    with opened(load_config(os.environ)) as index:
        assert [row.tally.turns for row in list_sessions(index, Filter(), sort="-turns")] == [3, 2, 1]
        assert [row.tally.turns for row in list_sessions(index, Filter(), sort="turns", limit=1, offset=1)] == [2]
        assert count_sessions(index, Filter(project="loom")) == 3
        assert count_sessions(index, Filter(project="tapestry")) == 0
        assert count_sessions(index, Filter(has_errors=True)) == 0
        model = index.connection.execute("SELECT DISTINCT model FROM response").fetchone()[0]
        assert count_sessions(index, Filter(model=model)) == 3


def test_a_turn_is_read_from_its_piece(project, command, monkeypatch):
    """`show --turn` reads the piece of the turn, and shows what reading everything shows."""
    writer = session_of(1)
    for number in range(300):
        call = writer.call("Bash", {"command": f"echo {number}"}) if number % 3 == 0 else None
        if call is not None:
            writer.result(call, str(number))
        writer.turn(f"Question {number}", f"Answer {number}")
    writer.prompt("look around")
    call = writer.call("Agent", {"description": "look", "prompt": "look", "subagent_type": "Explore"})
    agent = agent_writer(writer, "a1b2")
    agent.prompt("look")
    agent.say("Nothing here.")
    writer.result(call, "started", outcome={"agentId": "a1b2", "status": "async_launched", "isAsync": True})
    writer.say("It runs.")
    writer.turn("more", "yes")
    writer.save(project)
    save_agent(agent, project, "a1b2", {"agentType": "Explore", "toolUseId": tool_id(call)})
    config = load_config(os.environ)
    with opened(config) as index:
        numbers = [row[0] for row in index.connection.execute("SELECT DISTINCT number FROM turn WHERE number > 0")]
        pieces = index.connection.execute("SELECT count(DISTINCT piece) FROM turn").fetchone()[0]
    assert pieces > 1
    for number in (1, 150, numbers[-3], numbers[-2], numbers[-1]):
        seen = command("show", writer.session, "--turn", str(number))
        with monkeypatch.context() as without:
            without.setenv("TURNSPAN_INDEX", "false")
            assert seen == command("show", writer.session, "--turn", str(number))
        assert seen[0] == 0
    assert command("show", writer.session, "--turn", "9999")[0] != 0


def test_one_session_is_enough_for_a_command_that_needs_one(project):
    """An update can be limited to one transcript; the next command reads the others."""
    first = saved(project, "one", number=1)
    saved(project, "two", number=2)
    with opened(load_config(os.environ), scope=Scope(path=str(first))) as index:
        assert count_sessions(index, Filter()) == 1
    with opened(load_config(os.environ)) as index:
        assert count_sessions(index, Filter()) == 2


# ---- several commands at once, and killed ones

_OPEN = """
import os
from turnspan.index import Filter, list_sessions, opened
from turnspan.settings.config import load_config
with opened(load_config(os.environ)) as index:
    print(sum(row.tally.turns for row in list_sessions(index, Filter())), index.remarks, index.is_in_memory)
"""


def test_several_commands_at_once(project, path):
    """Commands that start together on a new index all have all sessions, and none of them fails."""
    for number in range(30):
        saved(project, "hi", "there", number=number)
    running = [
        subprocess.Popen([sys.executable, "-c", _OPEN], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(4)
    ]
    assert {process.communicate(timeout=120)[0] for process in running} == {"60 [] False\n"}
    expected = index_of()
    path.unlink()
    assert index_of() == expected
