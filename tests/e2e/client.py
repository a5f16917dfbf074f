"""The real client: `@anthropic-ai/claude-code` from npm, in a separate home directory.

Rules:

- A version is installed once, into a cache outside the repository: `TURNSPAN_E2E_CACHE`, else the user's own.
- The client is isolated from the user's account: its environment is listed here completely, its home, configuration
  and temporary files are in the run's directory, and the only server it knows is on loopback.
- If the client cannot be installed (no npm, no package for this system), `Unavailable` is raised with the reason, and
  the test is skipped.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "@anthropic-ai/claude-code"
NEWEST = "2.1.325"
API_KEY = "sk-ant-api03-scripted-" + "0" * 40
HERE = Path(__file__).parent
# The first version that supports an event; some old clients reject settings with an unknown one.
HOOK_EVENTS = {
    "Stop": (1, 0, 38),
    "SubagentStop": (1, 0, 41),
    "UserPromptSubmit": (1, 0, 54),
    "PreCompact": (1, 0, 48),
    "SessionStart": (1, 0, 62),
    "SessionEnd": (1, 0, 85),
    "SubagentStart": (2, 0, 43),
    "PostCompact": (2, 1, 76),
    "StopFailure": (2, 1, 78),
    "PreToolUse": (1, 0, 38),
    "PostToolUse": (1, 0, 38),
}
RECORDED = tuple(
    event for event in HOOK_EVENTS if not event.endswith("ToolUse")
)  # one per tool call would slow the client down


class Unavailable(Exception):  # noqa: N818  a reason to skip, not an error
    """The client is not available on this machine."""


def cache_dir() -> Path:
    """Return the directory of installed clients."""
    chosen = os.environ.get("TURNSPAN_E2E_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "turnspan-e2e"


def version_tuple(version: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparisons."""
    return tuple(int(part) for part in version.split("."))


def install(version: str = NEWEST) -> Path:
    """Install a version unless it is installed; return its executable."""
    place = cache_dir() / version
    program = place / "node_modules" / ".bin" / "claude"
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / ".ready").exists():
            return program
        npm = shutil.which("npm")
        if npm is None or shutil.which("node") is None:
            raise Unavailable("npm and node are needed to install the client")
        order = [
            npm,
            "install",
            "--prefix",
            str(place),
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
            f"{PACKAGE}@{version}",
        ]
        done = subprocess.run(order, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Unavailable(f"npm could not install {PACKAGE}@{version}: {done.stderr.strip()[-300:]}")
        _check_runs(place, program, version)
        (place / ".ready").touch()
    return program


def _check_runs(place: Path, program: Path, version: str) -> None:
    """Start the installed client; run the package's install script if npm is configured not to."""
    env = {"PATH": os.environ["PATH"], "HOME": str(place)}
    script = place / "node_modules" / PACKAGE / "install.cjs"
    for attempt in (1, 2):
        said = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=60, check=False, env=env
        )
        if said.stdout.startswith(version):
            return
        if attempt == 1 and script.exists():
            subprocess.run(["node", str(script)], cwd=script.parent, check=False, timeout=120, capture_output=True)
    raise Unavailable(f"{PACKAGE}@{version} does not run here: {(said.stdout + said.stderr).strip()[-300:]}")


@dataclass(frozen=True, slots=True)
class Home:
    """The home directory and the project of a run."""

    root: Path
    version: str

    @property
    def home(self) -> Path:
        """The home directory."""
        return self.root / "home"

    @property
    def project(self) -> Path:
        """The working directory of the sessions."""
        return self.root / "proj"

    @property
    def config(self) -> Path:
        """The client's configuration directory."""
        return self.home / ".claude"

    @property
    def settings(self) -> Path:
        """The user's settings file."""
        return self.config / "settings.json"

    @property
    def transcripts(self) -> Path:
        """The directory of the transcripts."""
        return self.config / "projects"

    def environment(self, **extra: str) -> dict[str, str]:
        """Return the client's complete environment; only `PATH` is inherited."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.root / "tmp"),
            "CLAUDE_CODE_TMPDIR": str(self.root / "tmp"),
            "USER": "dev",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "IS_SANDBOX": "1",  # root may skip permissions only in a sandbox
            "ANTHROPIC_API_KEY": API_KEY,
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_BUG_COMMAND": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_IDE_SKIP_AUTO_INSTALL": "1",
            "MCP_TIMEOUT": "20000",
            **extra,
        }


def make_home(root: Path, version: str) -> Home:
    """Create a home in which the client shows no first-run dialogs, and a project with a few files."""
    made = Home(root.resolve(), version)
    for folder in (
        made.config / "commands",
        made.config / "skills" / "lab",
        made.project,
        made.root / "tmp",
        made.root / "hooks",
    ):
        folder.mkdir(parents=True, exist_ok=True)
    project_state = {
        "hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True, "projectOnboardingSeenCount": 9,
        "allowedTools": [], "enabledMcpjsonServers": ["lab"],
    }  # fmt: skip
    state: dict[str, Any] = {
        "numStartups": 9, "theme": "dark", "hasCompletedOnboarding": True, "lastOnboardingVersion": version,
        "lastReleaseNotesSeen": version, "bypassPermissionsModeAccepted": True, "autoUpdates": False,
        "customApiKeyResponses": {"approved": [API_KEY[-20:]], "rejected": []}, "hasAcknowledgedCostThreshold": True,
        "projects": {str(made.project): project_state},
    }  # fmt: skip
    (made.home / ".claude.json").write_text(json.dumps(state))
    write_settings(
        made, {"skipDangerousModePermissionPrompt": True, "enabledMcpjsonServers": ["lab"], "autoUpdates": False}
    )
    (made.config / "commands" / "x.md").write_text(
        "---\ndescription: a command of the story\n---\n{hello} The command says $ARGUMENTS\n"
    )
    skill = "---\nname: lab\ndescription: A skill of the story.\n---\nSay that the skill worked.\n"
    (made.config / "skills" / "lab" / "SKILL.md").write_text(skill)
    (made.project / "notes.txt").write_text("first line\nsecond line\n")
    (made.project / "pixel.png").write_bytes(pixel_png())
    server = {"command": sys.executable, "args": ["-I", "-S", str(HERE / "mcp_server.py")]}
    (made.root / "mcp.json").write_text(json.dumps({"mcpServers": {"lab": server}}))
    if git := shutil.which("git"):
        subprocess.run(
            [git, "init", "-q", "-b", "main", str(made.project)],
            check=True,
            env={"HOME": str(made.home), "PATH": os.environ["PATH"]},
        )
    return made


def write_settings(home: Home, settings: dict[str, Any]) -> None:
    """Write the user's settings."""
    home.settings.write_text(json.dumps(settings, indent=2) + "\n")


def register_hooks(home: Home, command: str, events: tuple[str, ...] = RECORDED) -> None:
    """Add a command to the user's hooks, for each event that this client supports."""
    settings = json.loads(home.settings.read_text())
    hooks = settings.setdefault("hooks", {})
    for event in events:
        if version_tuple(home.version) >= HOOK_EVENTS[event]:
            hooks.setdefault(event, []).append({"hooks": [{"type": "command", "command": command}]})
    write_settings(home, settings)


def recorder_command(home: Home) -> str:
    """Return the command of the recording hook."""
    return f'"{sys.executable}" -I -S "{HERE / "recorder.py"}" "{home.root / "hooks"}"'


def pixel_png() -> bytes:
    """Return a red image of 8 by 8 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\x00" + b"\xff\x00\x00" * 8 for _ in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def picture_block() -> dict[str, Any]:
    """Return the image as a part of a prompt."""
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(pixel_png()).decode()},
    }
