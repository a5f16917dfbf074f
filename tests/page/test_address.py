"""A stable port and key: links that work after a restart, and a key that stays secret."""

import json
import stat
import sys

import pytest
from test_view import SESSION, made, settings

from turnspan.page.address import Address, keep_address, new_key, stable_address
from turnspan.page.server import Viewer


@pytest.fixture
def started(tmp_path, command, monkeypatch):
    """Run `turnspan view` with arguments; return the URL it prints."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))

    def interrupted(_self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Viewer, "serve_forever", interrupted)
    return lambda *arguments: command("view", "--no-browser", *arguments)[1].strip()


def test_a_stable_address_survives_a_restart(tmp_path, started):
    """With --stable the same link works again; without it the key is new and nothing is written."""
    made(tmp_path, "hello")
    assert started() != started()
    assert not (tmp_path / "turnspan" / "view.json").exists()
    first = started("--stable", SESSION)
    assert first == started("--stable", SESSION)
    assert first.endswith(f"#/s/{SESSION}")
    assert started() != started("--stable")


def test_another_port_is_kept_with_the_same_key(tmp_path, started):
    """--port with --stable moves the page; the key stays."""
    made(tmp_path, "hello")
    before = started("--stable")
    config = settings(tmp_path)
    with Viewer(config, config.destinations[0]) as other:
        free = other.port
    after = started("--stable", "--port", str(free))
    assert after.split("/")[3] == before.split("/")[3]
    assert started("--stable") == after
    assert f":{free}/" in after


def test_deleting_the_file_gives_a_new_key(tmp_path, started):
    """A file that was deleted or cannot be decoded is replaced."""
    made(tmp_path, "hello")
    seen = {started("--stable")}
    path = tmp_path / "turnspan" / "view.json"
    path.unlink()
    seen.add(started("--stable"))
    for content in ("", "{", '{"port": 1}', '{"port": 70000, "key": "x"}', '{"port": 0, "key": "../../etc"}', "[]"):
        path.write_text(content)
        seen.add(started("--stable"))
    assert len(seen) == 8


@pytest.mark.skipif(sys.platform == "win32", reason="the profile directory protects it there")
def test_only_the_owner_can_read_the_key(tmp_path):
    """The file is 0600; one that others can write to, or a link, is refused."""
    home = tmp_path / "turnspan"
    keep_address(home, Address(8100, new_key()))
    path = home / "view.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stable_address(home) == stable_address(home)
    path.chmod(0o666)
    with pytest.raises(Exception, match=r"view\.json"):
        stable_address(home)
    path.unlink()
    path.symlink_to(home / "elsewhere.json")
    with pytest.raises(Exception, match=r"view\.json"):
        stable_address(home)


def test_the_stored_key_opens_the_page(tmp_path):
    """The page is served under the stored key and no other."""
    config = settings(tmp_path)
    keep_address(config.home, Address(0, new_key()))
    address = stable_address(config.home)
    with Viewer(config, config.destinations[0], port=address.port, key=address.key) as viewer:
        assert viewer.url.endswith(f"/{address.key}/")
        assert json.loads((config.home / "view.json").read_text()) == {"port": 0, "key": address.key}
