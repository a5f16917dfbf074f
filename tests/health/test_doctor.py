"""`turnspan doctor`: a check and a remedy for everything that can go wrong."""

import base64
import contextlib
import email.utils
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import grpc
import msgspec
import pytest
from backends.langfuse_records import PROJECT, observation
from backends.servers import OK, Certificates, GrpcServer, HttpServer, reply
from rows import Writer

from turnspan import log
from turnspan.claude.command import Runtime
from turnspan.claude.install import InstallScope, apply, plan_install, remember_runtime, this_runtime
from turnspan.commands.records import doctor_record
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target, identity_of
from turnspan.delivery.ship import ship
from turnspan.health.checks.package import installed_checks
from turnspan.health.doctor import doctor_lines, examine
from turnspan.hook import PACKAGE_ROOT
from turnspan.source.ending import Ending
from turnspan.source.sessions import session_at

SECRET = "sk-lf-0123456789abcdef"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A private authority."""
    return Certificates(tmp_path_factory.mktemp("doctor-certificates"))


@pytest.fixture
def place(tmp_path):
    """A home and a project."""
    return Place(tmp_path)


class Place:
    def __init__(self, base):
        self.base = base
        self.claude = base / "home" / ".claude"
        self.claude.mkdir(parents=True)
        self.project = base / "project"
        self.project.mkdir()
        self.home = self.claude / "turnspan"
        self.env = {"HOME": str(base / "home"), "USERPROFILE": str(base / "home"), "PATH": "/nonexistent"}

    def write(self, text):
        """Write the user's config file."""
        self.home.mkdir(mode=0o700, exist_ok=True)
        (self.home / "config.toml").write_text(text)
        (self.home / "config.toml").chmod(0o600)

    def settings(self, table, path=None):
        """Write settings of Claude Code."""
        path = path or self.claude / "settings.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(table if isinstance(table, str) else json.dumps(table))
        return path

    def install(self, scope=InstallScope.USER, runtime=None):
        """Register the hooks."""
        apply(plan_install(scope, env=self.env, project=self.project, runtime=runtime or this_runtime()))

    def examine(self, **options):
        """Make every check."""
        return list(examine(self.env, self.project, now_s=time.time(), **{"managed": (), **options}))

    def said(self, **options):
        """What is not good, as mark, sentence and remedy."""
        return [(check.mark.value, check.says, check.todo) for check in self.examine(**options) if check.mark != "good"]

    def about(self, group, **options):
        """The checks under one heading."""
        return [check for check in self.examine(**options) if check.group == group]

    def langfuse(self, url, **options):
        """Name a Langfuse server."""
        more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        keys = f'public_key = "pk-lf-1"\nsecret_key = "{SECRET}"\n'
        self.write(f'[destinations.langfuse]\nbase_url = "{url}"\n{keys}timeout_s = 3\n{more}')

    def otlp(self, url, **options):
        """Name an OTLP server."""
        more = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())
        self.write(f'[destinations.otlp]\nendpoint = "{url}"\ntimeout_s = 3\n{more}')

    def trouble(self, name, **options):
        """The one thing that is wrong with a destination: its mark, its sentence and its remedy."""
        found = [check for check in self.about(f"Destination {name}", **options) if check.mark != "good"]
        assert len(found) == 1, found
        assert found[0].todo
        assert SECRET not in str(found)
        return found[0].mark.value, found[0].says, found[0].todo


def langfuse_server(version="3.120.0", traces=OK, **more):
    """An answer for each path that Langfuse has."""
    answers = {
        "/api/public/health": reply(200, json.dumps({"status": "OK", "version": version}).encode()),
        "/api/public/projects": reply(200, json.dumps(PROJECT).encode()),
        "/api/public/otel/v1/traces": traces,
        **more,
    }

    def serve(connection, request):
        connection.sendall(answers.get(request.path.partition("?")[0], reply(404)))

    return HttpServer(serve)


def closed_port():
    """A port where nothing listens."""
    with HttpServer() as server:
        return server.port


# ---- a healthy installation


def test_a_healthy_installation_has_no_problems(place):
    """With hooks, local files and a readable session there is no warning."""
    place.install()
    Writer().save(place.claude / "projects" / "-p")
    writer = Writer()
    writer.turn("weave", "Woven.")
    path = writer.save(place.claude / "projects" / "-p")
    os.utime(path)
    checks = place.examine()
    assert [check for check in checks if check.mark != "good"] == []
    assert list(dict.fromkeys(check.group for check in checks)) == [
        "Installation",
        "Claude Code",
        "Files",
        "Configuration",
        "Destination local",
        "Transcripts",
    ]
    assert "Claude Code 2.1.100 wrote the 1 newest session" in [check.says for check in checks]
    assert list(doctor_lines(checks))[-1].endswith("no problems found\x1b[0m")
    assert doctor_record(checks)["is_healthy"] is True


def test_doctor_changes_nothing(place):
    """No file is created or changed."""
    place.install()
    Writer().save(place.claude / "projects" / "-p")

    def everything():
        return {path: path.stat().st_mtime_ns for path in sorted(place.base.rglob("*"))}

    before = everything()
    place.examine()
    assert everything() == before


def test_a_healthy_langfuse(place):
    """Reachable, its version, the keys and their project; only requests after the first carry the keys."""
    with langfuse_server() as server:
        place.langfuse(server.url)
        said = [check.says for check in place.about("Destination langfuse")]
        assert said[1:] == [
            f"127.0.0.1:{server.port} can be reached, on this machine",
            "Langfuse 3.120.0",
            "it accepts OTLP and our credentials",
            "the keys belong to the project loom, which keeps traces for 30 days",
        ]
        health, *others = server.requests
        assert "authorization" not in health.headers
        assert all("authorization" in request.headers for request in others)
        assert all(not request.spans for request in others if request.method == "POST")


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_healthy_collector(place, protocol):
    """Over either protocol."""
    with HttpServer() if protocol == "http/protobuf" else GrpcServer() as server:
        place.otlp(server.url, protocol=protocol)
        checks = place.about("Destination otlp")
        assert [check.mark for check in checks] == ["good"] * 3
        assert checks[-1].says == "it accepts OTLP"


# ---- destinations that cannot be used


def test_no_keys(place):
    """Langfuse without keys: the hint says where to get them and what to run."""
    place.write("[destinations.langfuse]\n")
    mark, says, todo = place.trouble("langfuse")
    assert (mark, says) == ("bad", "destination langfuse: the setting 'public_key' is missing")
    assert "turnspan install --to langfuse" in todo


def test_one_key_only(place):
    """The other one is named."""
    place.env["LANGFUSE_PUBLIC_KEY"] = "pk-lf-1"
    [(mark, says, _)] = [said for said in place.said() if "LANGFUSE" in said[1]]
    assert mark == "bad"
    assert says.startswith("$LANGFUSE_SECRET_KEY is not set, and Langfuse needs both keys")


@pytest.mark.parametrize("status", [401, 403])
def test_wrong_keys_or_the_wrong_region(place, status):
    """The keys are unknown to the server: the hint names the other regions."""
    with langfuse_server(traces=reply(status, b'{"message":"Invalid credentials"}')) as server:
        place.langfuse(server.url)
        mark, says, todo = place.trouble("langfuse")
    assert mark == "bad"
    assert says.startswith(f"HTTP {status}: the server refused the credentials")
    assert "check both keys" in todo
    assert "https://us.cloud.langfuse.com" in todo


def test_wrong_headers(place):
    """A collector that rejects the credentials."""
    with HttpServer(reply(404), reply(401)) as server:
        place.otlp(server.url)
        assert "check `headers`" in place.trouble("otlp")[2]


def test_the_wrong_host(place):
    """A host name that cannot be resolved."""
    place.langfuse("https://langfuse.invalid")
    mark, says, todo = place.trouble("langfuse")
    assert mark == "bad"
    assert "langfuse.invalid" in says
    assert "host" in todo


def test_a_server_that_is_something_else(place):
    """A web page instead of Langfuse."""
    with HttpServer(reply(200, b"<html>welcome</html>", "text/html")) as server:
        place.langfuse(server.url)
        said = [(check.mark.value, check.says, check.todo) for check in place.about("Destination langfuse")]
    assert ("doubt", f"127.0.0.1:{server.port} does not answer like Langfuse (HTTP 200)", "check `base_url`") in said
    assert said[-1][0] == "bad"
    assert "web page" in said[-1][1]
    assert "4318" in said[-1][2]


def test_a_server_that_is_down(place):
    """Nothing listens on the port."""
    port = closed_port()
    place.otlp(f"http://127.0.0.1:{port}")
    mark, says, todo = place.trouble("otlp")
    assert mark == "bad"
    assert says == f"127.0.0.1:{port} cannot be reached: Connection refused"
    assert todo == "start the server, or correct the port"
    place.otlp(f"http://127.0.0.1:{port}", protocol="grpc")
    assert place.trouble("otlp")[2] == todo


def test_a_server_that_hangs(place):
    """The deadline ends the probe."""
    with HttpServer(lambda _connection, _request: server.closing.wait(10)) as server:
        place.otlp(server.url)
        place.write((place.home / "config.toml").read_text().replace("timeout_s = 3", "timeout_s = 0.3"))
        mark, says, todo = place.trouble("otlp")
    assert mark == "bad"
    assert "no answer" in says
    assert "timeout_s" in todo


def test_a_server_that_is_busy(place):
    """A transient failure is a warning, not an error."""
    with HttpServer(reply(404), reply(503)) as server:
        place.otlp(server.url)
        mark, says, todo = place.trouble("otlp")
    assert (mark, says) == ("doubt", "HTTP 503")
    assert "transient" in todo


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply(302, Location="https://elsewhere.example/x?token=1"), "keys are never sent there"),
        (reply(404), "it is a base URL"),
        (reply(200, b"<html>", "text/html"), "usually at 4318"),
    ],
    ids=["redirect", "404", "page"],
)
def test_the_wrong_url(place, answer, words):
    """An address that answers, but not with OTLP."""
    with HttpServer(reply(404), answer) as server:
        place.otlp(server.url)
        mark, _, todo = place.trouble("otlp")
    assert mark == "bad"
    assert words in todo


def test_a_grpc_port_for_http(place):
    """The two usual ports are often confused."""
    with GrpcServer() as server:
        place.otlp(server.url)
        mark, says, todo = place.trouble("otlp")
    assert mark == "bad"
    assert "HTTP/1.1" in says
    assert "grpc" in todo


def test_plain_http_to_another_machine(place):
    """It is rejected before anything is sent."""
    place.otlp("http://collector.example:4318")
    mark, says, todo = place.trouble("otlp")
    assert mark == "bad"
    assert "insecure endpoint" in says
    assert "https" in todo


@pytest.mark.parametrize("status", [407, 502])
def test_a_proxy_that_refuses(place, status):
    """The proxy is named if it rejects the password or cannot reach the server."""
    with HttpServer(reply(status)) as proxy:
        place.langfuse("https://langfuse.example", proxy=f"http://ada:hunter2@127.0.0.1:{proxy.port}")
        mark, says, todo = place.trouble("langfuse")
    assert mark == "bad"
    assert f"the proxy 127.0.0.1:{proxy.port}" in says
    assert "`proxy`" in todo
    assert "hunter2" not in says + todo


def test_a_proxy_in_the_environment_is_mentioned(place, monkeypatch):
    """If the server cannot be reached, the hint says how to use it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    place.langfuse("https://langfuse.invalid")
    assert "`proxy_from_env = true`" in place.trouble("langfuse")[2]


CERTIFICATES = {
    "unknown": ({}, "set `certificate` to the file of that authority"),
    "expired": ({"days": -1}, "the certificate has expired"),
    "another host": ({"host": "other.example"}, "the certificate is for another host than localhost"),
}


@pytest.mark.parametrize(("signed", "words"), CERTIFICATES.values(), ids=CERTIFICATES)
@pytest.mark.parametrize("kind", ["otlp", "langfuse"])
def test_certificates(place, certificates, kind, signed, words):
    """Self-signed, expired, for another host: each has its own hint."""
    try:
        pair = certificates.sign(f"{kind}-{len(words)}", **signed)
    except subprocess.CalledProcessError:
        pytest.skip("this openssl makes no such certificate")
    with HttpServer(tls=certificates.server_context(*pair)) as server:
        options = {"certificate": certificates.ca} if signed else {}
        getattr(place, kind)(server.url, **options)
        mark, says, todo = place.trouble(kind)
        assert server.requests == []
    assert mark == "bad"
    assert says.startswith(f"TLS with localhost:{server.port} failed")
    assert words in todo


def test_a_trusted_certificate(place, certificates):
    """With `certificate` set to the authority, there are no warnings."""
    with HttpServer(tls=certificates.server_context(*certificates.sign("doctor-good"))) as server:
        place.otlp(server.url, certificate=certificates.ca)
        assert [check.mark for check in place.about("Destination otlp")] == ["good"] * 3


def test_certificates_over_grpc(place, certificates):
    """The same hints over gRPC."""
    chain, key = (Path(path).read_bytes() for path in certificates.sign("doctor-grpc"))
    with GrpcServer(credentials=grpc.ssl_server_credentials([(key, chain)])) as server:
        place.otlp(server.url, protocol="grpc")
        mark, _, todo = place.trouble("otlp")
        assert mark == "bad"
        assert "set `certificate` to the file of that authority" in todo
        place.otlp(server.url, protocol="grpc", certificate=certificates.ca)
        assert [check.mark for check in place.about("Destination otlp")] == ["good"] * 3


def test_a_certificate_file_that_is_not_there(place):
    """It is named."""
    place.otlp("https://localhost:1", certificate="/nonexistent.pem")
    assert "'certificate' is '/nonexistent.pem'" in place.trouble("otlp")[1]


def test_https_to_a_plain_http_server(place):
    """A plain port behind an https URL."""
    with HttpServer() as server:
        place.otlp(f"https://localhost:{server.port}")
        mark, says, todo = place.trouble("otlp")
    assert mark == "bad"
    assert "SSL" in says
    assert "speaks https" in todo


def test_an_old_langfuse(place):
    """One that has no OTLP endpoint yet."""
    with langfuse_server(version="2.95.1", traces=reply(404)) as server:
        place.langfuse(server.url)
        said = [(check.mark.value, check.says) for check in place.about("Destination langfuse")]
    assert ("bad", "Langfuse 2.95.1 does not accept OTLP yet") in said


@pytest.mark.parametrize(("seconds", "way"), [(-600, "ahead of"), (600, "behind")])
def test_a_clock_that_is_wrong(place, seconds, way):
    """Traces would carry the wrong times."""
    date = email.utils.formatdate(time.time() + seconds, usegmt=True)
    with HttpServer(reply(404, Date=date), OK) as server:
        place.otlp(server.url)
        mark, says, _ = place.trouble("otlp")
    assert mark == "doubt"
    assert re.fullmatch(rf"the clock of this machine is (599|600|601) s {way} the server's", says)


def test_a_client_that_does_not_know_the_form_of_the_hook(place):
    """`args` was registered for a newer client: an older one would start a bare interpreter at every stop."""
    runtime = Runtime(Path(sys.executable), Path(PACKAGE_ROOT), None, "win32")
    place.install(runtime=runtime)
    (place.claude.parent / ".claude.json").write_text(json.dumps({"lastReleaseNotesSeen": "2.1.98"}))
    said = [check for check in place.about("Claude Code") if "`args`" in check.says]
    assert [check.mark.value for check in said] == ["bad"]
    assert "2.1.98 does not know" in said[0].says
    (place.claude.parent / ".claude.json").write_text(json.dumps({"lastReleaseNotesSeen": "2.1.139"}))
    said = [check.says for check in place.about("Claude Code")]
    assert not any("`args`" in says for says in said)
    assert f"the hook's command starts: {sys.executable}" in said


def test_a_client_on_the_other_side_of_wsl(place):
    """The path of its transcript cannot be opened here: the log and the check say why, and what to do."""
    path = (
        "/home/ada/.claude/projects/-p/s.jsonl" if sys.platform == "win32" else "C:\\Users\\ada\\projects\\-p\\s.jsonl"
    )
    event = {"session_id": "0a1b2c3d-0000-4000-8000-000000000001", "transcript_path": path, "hook_event_name": "Stop"}
    code = "from turnspan.worker import main; main()"
    env = {**os.environ, **place.env, "USERPROFILE": place.env["HOME"]}
    subprocess.run([sys.executable, "-c", code], input=json.dumps(event).encode(), env=env, check=True)
    [check] = [check for check in place.about("Claude Code") if "same side of WSL" in check.says]
    assert check.mark == "bad"
    assert "the transcript has a path of" in check.says


# ---- settings


def test_malformed_settings_of_claude_code(place):
    """The message names the file and the line, and says that Claude Code ignores the file."""
    path = place.settings('{\n  "hooks": {},\n}\n')
    mark, says, todo = place.said()[0]
    assert mark == "bad"
    assert says.startswith((f"{path} cannot be used: line 3, column 1", f"{path} cannot be used: line 2, column 14"))
    assert "Claude Code ignores it" in says
    assert "fix it" in todo


def test_malformed_settings_of_ours(place):
    """One error names the file and the line."""
    place.write('capture = "redacted"\n[destinations\n')
    [check] = place.about("Configuration")
    assert check.mark == "bad"
    assert "config.toml:2 is not valid TOML" in check.says
    assert "nothing is exported until this is fixed" in check.says


def test_a_destination_without_a_type(place):
    """The likeliest mistake is one error, with the line to add; no other package is recommended."""
    place.write('[destinations.jaeger]\nendpoint = "http://localhost:4318"\n')
    [check] = place.about("Configuration")
    assert check.mark == "bad"
    assert 'config.toml:1: [destinations.jaeger] has no type (did you mean `type = "otlp"`?)' in check.says
    assert place.about("Destination jaeger") == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_a_config_file_that_others_can_write_to(place):
    """It is one error, with the command that fixes it; no setting is said to disable turnspan."""
    place.write("")
    (place.home / "config.toml").chmod(0o666)
    [check] = place.about("Configuration")
    assert check.mark == "bad"
    assert "chmod go-w" in check.says


def test_disabled_by_the_environment(place):
    """A variable that disables export is to be unset; the file is not mentioned."""
    place.env["TURNSPAN_ENABLED"] = "0"
    [_, check] = place.about("Configuration")
    assert check.says == "turnspan is disabled by $TURNSPAN_ENABLED: nothing is exported"
    assert check.todo == "unset TURNSPAN_ENABLED"


def test_disabled_by_the_config_file(place):
    """The file that disables export is named."""
    place.write("enabled = false\n")
    [_, check] = place.about("Configuration")
    assert check.todo == f"set `enabled = true` in {place.home / 'config.toml'}"


@pytest.mark.parametrize("source", ["(", "(?:\\\\w+\\\\s*){60}"])
def test_a_wrong_pattern(place, source):
    """A pattern that is not a regular expression, or would take too long, is an error that names it."""
    place.write(f'patterns = {{ mine = "{source}" }}\n')
    [check] = place.about("Configuration")
    assert check.mark.value == "bad"
    assert "'mine'" in check.says


def test_a_project_that_is_off(place):
    """The check names the project's file that disables export."""
    (place.project / ".claude").mkdir()
    (place.project / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    [_, check] = place.about("Configuration")
    assert check.mark == "doubt"
    assert str(place.project / ".claude" / "turnspan.toml") in check.says


def test_a_destination_that_only_this_shell_knows(place):
    """The desktop app is not started from this shell."""
    with HttpServer() as server:
        place.env["TURNSPAN_OTLP_ENDPOINT"] = server.url
        mark, says, todo = place.trouble("otlp")
    assert mark == "doubt"
    assert "this shell only" in says
    assert "turnspan install --to otlp" in todo


# ---- hooks


def hooks(place, **options):
    """The warnings and errors about Claude Code."""
    return [(check.mark.value, check.says, check.todo) for check in place.about("Claude Code", **options)
            if check.mark != "good"]  # fmt: skip


def test_no_hooks(place):
    """Without hooks there is one error, with the command to run."""
    assert hooks(place) == [
        ("bad", "no hooks registered: Claude Code does not call turnspan", "run `turnspan install`")
    ]


def test_two_installs(place):
    """Registered for the user and for the project: one of the two is enough."""
    place.install()
    place.install(InstallScope.LOCAL)
    [(mark, says, todo)] = hooks(place)
    assert mark == "doubt"
    assert "also registered in the local settings" in says
    assert "turnspan uninstall --scope local" in todo


def test_two_turnspans(place):
    """The hook calls another turnspan than the one that runs doctor."""
    other = place.base / "other"
    (other / "turnspan").parent.mkdir()
    (other / "turnspan").symlink_to(Path(PACKAGE_ROOT) / "turnspan")
    place.install(runtime=Runtime(Path(sys.executable), other, None, "other"))
    said = hooks(place)
    assert [mark for mark, _, _ in said] == ["doubt", "doubt"]
    assert "registered by another version, path or interpreter" in said[0][1]
    assert "two installations" in said[1][1]


def test_a_deleted_interpreter(place):
    """The virtual environment of the hook was deleted."""
    place.install(runtime=Runtime(Path("/nonexistent/python3"), Path(PACKAGE_ROOT), None, "other"))
    found = [said for said in hooks(place) if said[0] == "bad"]
    assert found == [
        (
            "bad",
            "the hook in user calls /nonexistent/python3, which does not exist",
            "`turnspan install --scope user` updates it",
        )
    ]


def test_a_package_that_is_broken(place):
    """The interpreter exists, but cannot import turnspan."""
    (place.base / "other" / "turnspan").mkdir(parents=True)
    (place.base / "other" / "turnspan" / "__init__.py").write_text("raise ImportError('half of it is missing')\n")
    interpreter = place.base / "python3"  # another one, that has no turnspan of its own
    interpreter.symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    place.install(runtime=Runtime(interpreter, place.base / "other", None, "other"))
    [found] = [said for said in hooks(place) if said[0] == "bad"]
    assert "half of it is missing" in found[1]


def test_a_program_that_a_project_names_is_not_started(place):
    """A repository could name anything."""
    trap = place.base / "turnspan-hook"
    trap.write_text(f"#!/bin/sh\ntouch {place.base}/started\n")
    trap.chmod(0o755)
    command = f"{trap} {trap} {place.base}"
    entry = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}}
    place.settings(entry, place.project / ".claude" / "settings.json")
    assert any("was not started" in says for _, says, _ in hooks(place))
    assert not (place.base / "started").exists()


def test_a_hook_that_depends_on_the_path(place):
    """A desktop app has another PATH."""
    place.settings({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "turnspan hook"}]}]}})
    assert any("depends on the PATH" in says for _, says, _ in hooks(place))


def test_missing_events(place):
    """An older installation registered fewer events."""
    place.install()
    table = json.loads((place.claude / "settings.json").read_bytes())
    del table["hooks"]["StopFailure"]
    place.settings(table)
    [(mark, says, todo)] = hooks(place)
    assert mark == "doubt"
    assert says.endswith(": StopFailure")
    assert todo == "run `turnspan install --scope user`"


def test_disabled_hooks(place):
    """`disableAllHooks` counts in the scope with the highest precedence."""
    place.install()
    path = place.settings({"disableAllHooks": True}, place.project / ".claude" / "settings.json")
    [(mark, says, _)] = hooks(place)
    assert mark == "bad"
    assert f"`disableAllHooks` is set in the project settings ({path})" in says
    place.settings({"disableAllHooks": False}, place.project / ".claude" / "settings.local.json")
    assert hooks(place) == []


def test_a_policy(place):
    """An organisation that allows only its own hooks."""
    place.install()
    policy = place.settings({"allowManagedHooksOnly": True}, place.base / "managed-settings.json")
    [(mark, says, todo)] = hooks(place, managed=(policy,))
    assert mark == "bad"
    assert str(policy) in says
    assert "ask your organisation" in todo
    table = json.loads((place.claude / "settings.json").read_bytes())
    place.settings({"allowManagedHooksOnly": True, "hooks": table["hooks"]}, policy)
    assert not any(mark == "bad" for mark, _, _ in hooks(place, managed=(policy,)))


def test_another_exporter(place):
    """Another exporter would send the same turns again."""
    place.install()
    table = json.loads((place.claude / "settings.json").read_bytes())
    table["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "python3 ~/langfuse_hook.py"}]})
    place.settings(table)
    found = hooks(place)
    assert ("doubt", True) in [(mark, "a Langfuse hook is called on Stop" in says) for mark, says, _ in found]


def test_the_plugin_knows_where_turnspan_is(place):
    """The recorded turnspan is started, else ~/.local/bin/turnspan; the plugin uses no PATH."""
    root = place.claude / "plugins" / "turnspan"
    (root / "hooks").mkdir(parents=True)
    (root / ".claude-plugin").mkdir()
    (root / ".claude-plugin" / "plugin.json").write_text('{"name":"turnspan"}')
    plugin = Path(__file__).parents[2] / "hooks"
    (root / "hooks" / "hooks.json").write_text((plugin / "hooks" / "hooks.json").read_text())
    installed = {"version": 2, "plugins": {"turnspan@turnspan": [{"scope": "user", "installPath": str(root)}]}}
    (place.claude / "plugins" / "installed_plugins.json").write_text(json.dumps(installed))
    place.settings({"enabledPlugins": {"turnspan@turnspan": True}})
    assert any("the plugin does not find turnspan" in says for _, says, _ in hooks(place))
    program = place.base / "home" / ".local" / "bin" / "turnspan"
    program.parent.mkdir(parents=True)
    program.touch()
    assert not any("find turnspan" in says for _, says, _ in hooks(place))
    remember_runtime(place.env, this_runtime())
    assert hooks(place) == []


def test_hooks_without_any_event(place):
    """Claude Code was used since the hooks were registered, but no event has arrived."""
    place.install()
    path = Writer().save(place.claude / "projects" / "-p")
    assert hooks(place) == []
    later = time.time() + 600
    os.utime(path, (later, later))
    [(mark, says, todo)] = hooks(place)
    assert mark == "doubt"
    assert "no event has reached turnspan" in says
    assert "new session" in todo
    log.log_line(place.home, "INFO", "nothing new")
    assert hooks(place) == []


# ---- the package


def test_a_package_as_it_was_installed(tmp_path):
    """Missing or changed files and missing dependencies are named."""
    module, info = tmp_path / "turnspan" / "x.py", tmp_path / "turnspan-1.dist-info"
    module.parent.mkdir()
    info.mkdir()
    module.write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"turnspan/x.py,sha256={digest},6\nturnspan-1.dist-info/RECORD,,\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: turnspan\nVersion: 1\nRequires-Dist: click>=8.1\n")
    package = metadata.PathDistribution(info)
    assert [check.mark for check in installed_checks(package)] == ["good"]
    module.write_text("x = 2\n")
    [check] = installed_checks(package)
    assert (check.mark, check.says) == ("bad", "files of the package are missing or changed: turnspan/x.py")
    module.unlink()
    with (info / "METADATA").open("a") as file:
        file.write("Requires-Dist: no-such-thing>=1\nRequires-Dist: pytest-nothing; extra == 'dev'\n")
    said = [check.says for check in installed_checks(metadata.PathDistribution(info))]
    assert said[1] == "dependencies are not installed: no-such-thing"


# ---- files


@contextlib.contextmanager
def unprivileged_user():
    """Drop the privileges of root for a moment, because root can write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_home():
    """Progress cannot be recorded, so nothing is sent; the path is named."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        place = Place(Path(directory))
        place.claude.chmod(0o555)
        place.examine()  # loads every module: another user may not be able to read them
        with unprivileged_user():
            said = place.about("Files")
        place.claude.chmod(0o755)
    assert said[0].mark == "bad"
    assert said[0].says.startswith(f"cannot write to {place.claude}")
    assert "CLAUDE_CONFIG_DIR" in said[0].todo


def test_no_home_at_all(place):
    """Without a usable home there is one error."""
    place.env["CLAUDE_CONFIG_DIR"] = "relative"
    checks = place.examine()
    assert checks[-1].mark == "bad"
    assert "relative path" in checks[-1].says


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_permissions(place):
    """A path writable by other users is an error; a readable one is a warning."""
    place.write("")
    (place.home / "config.toml").chmod(0o644)
    (place.home / "state").mkdir(mode=0o777)
    (place.home / "state").chmod(0o777)
    said = {check.says: (check.mark.value, check.todo) for check in place.about("Files") if check.mark != "good"}
    assert said[f"other users can read {place.home / 'config.toml'}"][0] == "doubt"
    assert said[f"other users can write to {place.home / 'state'}, so it is not used"][0] == "bad"
    assert all("chmod" in todo for _, todo in said.values())


def test_damaged_state_files(place):
    """Damaged state files are counted and not changed."""
    state.save(place.home, state.Checkpoint(session_id="good"))
    (place.home / "state" / "half.json").write_text('{"session_id":"ha')
    (place.home / "state" / "half.json").chmod(0o600)
    assert any("the state of 1 session is damaged" in check.says for check in place.about("Files"))
    assert (place.home / "state" / "half.json").exists()


def test_bugs_in_the_log(place):
    """A bug in the log is reported."""
    log.log_line(place.home, "ERROR", "bug", type="KeyError", at="ship.py:12")
    assert any("KeyError at ship.py:12" in check.says for check in place.about("Files"))


# ---- destinations


def test_a_hold_and_what_was_refused(place):
    """The last error of a destination, and its backoff."""
    with HttpServer() as server:
        place.otlp(server.url)
        [destination] = examine_config(place).destinations
        identity = identity_of(destination)
        hold = backoff.Backoff(until_s=time.time() + 100, reason="HTTP 401: no", answer="credentials")
        backoff.save(place.home, identity, hold)
        cursor = state.Cursor(quarantined=(state.Quarantine(trace_id="00", reason="bad"),))
        state.save(place.home, state.Checkpoint(session_id="s", destinations={identity: cursor}))
        said = [check.says for check in place.about("Destination otlp") if check.mark == "doubt"]
    assert said[0].startswith("backing off until ")
    assert said[0].endswith(" after credentials: HTTP 401: no")
    assert said[1] == "it rejected 1 span for good"


def examine_config(place):
    """The settings of a place."""
    from turnspan.settings.config import load_config  # noqa: PLC0415

    return load_config(place.env)


def test_a_local_directory_that_cannot_be_made(place):
    """A file is in its place."""
    (place.base / "file").write_text("")
    place.write(f'[destinations.local]\ndirectory = "{place.base}/file"\n')
    assert place.trouble("local")[1] == f"cannot write to {place.base}/file"


def test_a_test_trace_reaches_files_and_is_read_back(place):
    """One command tests the complete path."""
    [*_, last] = place.about("Destination local", is_sending=True)
    assert last.mark == "good"
    trace_id = last.says.removeprefix("a test trace was sent and read back: ")
    [line] = (place.home / "traces" / "traces-000001.jsonl").read_text().splitlines()
    assert trace_id in line


def test_a_test_trace_reaches_a_collector(place):
    """A collector cannot be asked for it."""
    with HttpServer() as server:
        place.otlp(server.url)
        [*_, last] = place.about("Destination otlp", is_sending=True)
        assert last.mark == "good"
        assert server.requests[-1].spans[0]["name"] == "turnspan doctor"
        assert server.requests[-1].spans[0]["trace_id"] in last.says


def test_a_test_trace_reaches_langfuse_and_is_read_back(place):
    """Langfuse is asked until it returns the trace."""
    spans = []

    def serve(connection, request):
        if request.path.endswith("/v1/traces"):
            spans.extend(request.spans)
            return connection.sendall(OK)
        if request.path.startswith("/api/public/v2/observations"):
            data = [observation(span["span_id"], span["trace_id"]) for span in spans]
            return connection.sendall(reply(200, json.dumps({"data": data, "meta": {}}).encode()))
        body = {"version": "3.120.0", "status": "OK", **PROJECT}
        return connection.sendall(reply(200, json.dumps(body).encode()))

    with HttpServer(serve) as server:
        place.langfuse(server.url)
        [*_, last] = place.about("Destination langfuse", is_sending=True)
    assert last.says.startswith("a test trace was sent and read back")


# ---- transcripts


def test_unknown_lines_and_fields(place):
    """Unknown lines and fields are reported with the version of the client."""
    writer = Writer(version="2.9.1")
    writer.turn("weave", "Woven.")
    writer.rows[-1]["mood"] = "good"
    writer.row("telepathy")
    os.utime(writer.save(place.claude / "projects" / "-p"))
    said = [check.says for check in place.about("Transcripts")]
    assert "lines of unknown types are skipped: telepathy (2.9.1, 1 times)" in said
    assert "unknown fields, not needed: mood (2.9.1)" in said


def test_unknown_parts_of_messages(place):
    """Blocks, usage, stop reasons and launching tools that no trace shows are counted, with the client's version."""
    writer = Writer(version="2.9.1")
    writer.prompt("weave")
    writer.say([{"type": "hologram"}], usage={"input_tokens": 1, "loom_tokens": 2, "idle_tokens": 0}, stop="bored")
    call = writer.call("Summon", {})
    writer.result(call, [{"type": "smell"}, {"type": "text", "text": "."}], outcome={"agentId": "a1"})
    os.utime(writer.save(place.claude / "projects" / "-p"))
    said = [check.says for check in place.about("Transcripts")]
    assert "every line is understood" not in said
    assert (
        "unknown parts of messages are skipped: agents launched by Summon (2.9.1, 1 times), "
        "block smell in a result (2.9.1, 1 times), content block hologram (2.9.1, 1 times), "
        "stop reason bored (2.9.1, 1 times), usage loom_tokens (2.9.1, 1 times)"
    ) in said


def test_lines_that_cannot_be_read(place):
    """Damaged lines are counted once each, and their sessions are named."""
    for number in (1, 2):
        writer = Writer(f"{number}e55104a-0000-4000-8000-000000000001")
        writer.turn("weave", "Woven.")
        path = writer.save(place.claude / "projects" / "-p")
        path.write_bytes(path.read_bytes() + writer.lines()[-1][:150] + b"\n")
    said = [check.says for check in place.about("Transcripts")]
    [line] = [words for words in said if "cannot be read" in words]
    assert line.startswith("2 lines of 2 sessions cannot be read: ")
    assert {"1e55104a", "2e55104a"} <= {word.strip(",") for word in line.split()}


def test_unreadable_transcripts():
    """An unreadable project or file is reported; the others are checked."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        place = Place(Path(directory))
        projects = place.claude / "projects"
        for number, project in enumerate(("-open", "-open", "-closed")):
            writer = Writer(f"5e55104a-0000-4000-8000-{number:012}")
            writer.turn("weave", "Woven.")
            path = writer.save(projects / project)
            path.chmod(0 if number == 1 else 0o644)
            path.parent.chmod(0 if project == "-closed" else 0o755)
        with unprivileged_user():
            said = place.about("Transcripts")
        for closed in (projects / "-closed", projects / "-open"):
            closed.chmod(0o755)
    assert [check.mark for check in said[:3]] == ["bad", "bad", "good"]
    assert f"cannot list {str(projects / '-closed')!r}: " in said[0].says
    assert "000000000001.jsonl': permission denied" in said[1].says
    assert "wrote the 1 newest session" in said[2].says


def test_transcripts_that_will_be_deleted_soon(place):
    """Unsent sessions that Claude Code deletes within days are a warning."""
    writer = Writer()
    writer.turn("weave", "Woven.")
    path = writer.save(place.claude / "projects" / "-p")
    then = time.time() - 28 * 86400
    os.utime(path, (then, then))
    [check] = [check for check in place.about("Transcripts") if check.mark == "doubt"]
    assert check.says == "Claude Code deletes 1 session with 1 unsent turn within a week, the first in 2 days"
    assert "turnspan backfill" in check.todo
    config = examine_config(place)
    ship(session_at(path), Target(config.destinations[0], config), Ending(is_over=True), time.time)
    assert all(check.mark == "good" for check in place.about("Transcripts"))


# ---- the command


@pytest.fixture
def turnspan(place, monkeypatch, command):
    """Run a command; return its exit code and output."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.project)
    return command


def test_the_exit_code_is_1_if_there_is_an_error(place, turnspan):
    """1 with an error, 0 without; text by default, an object with --json."""
    code, out, err = turnspan("doctor")
    assert (code, err) == (1, "")
    assert "  ✗ no hooks registered: Claude Code does not call turnspan\n    → run `turnspan install`\n" in out
    place.install()
    code, out, _ = turnspan("doctor", "--json")
    record = json.loads(out)
    assert (code, record["is_healthy"]) == (0, True)
    assert msgspec.convert(record["checks"], list[dict[str, str | None]])
    help_text = turnspan("doctor", "--help")[1]
    for name in (*record, *record["checks"][0]):
        assert re.search(rf"\b{name}\b", help_text), name


def test_one_destination_only(place, turnspan):
    """`--to` checks only one; an unknown name lists the available ones."""
    place.write('[destinations.local]\n[destinations.otlp]\nendpoint = "http://127.0.0.1:1"\n')
    assert "Destination otlp" not in turnspan("doctor", "--to", "local")[1]
    code, _, err = turnspan("doctor", "--to", "nowhere")
    assert code == 1
    assert "available: local, otlp" in err


def test_a_servers_answer_cannot_control_the_terminal(place, turnspan):
    """Escape sequences in an answer are removed."""
    with HttpServer(reply(404), reply(403, b"\x1b]52;c;aGk=\x07no")) as server:
        place.otlp(server.url)
        out = turnspan("doctor")[1]
    assert "\x1b" not in out
    assert "\x07" not in out
