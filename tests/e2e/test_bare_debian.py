"""A bare Debian with only what its Python brings: install, demo, one turn of the real client, uninstall, nothing left.

debootstrap makes the system once, into the cache of the clients; each run works in a copy. The wheel and what it depends
on are brought as files, so that the system needs no network but the loopback address of the scripted API. Needs root
and debootstrap, which CI has; otherwise the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .api import Api
from .client import NEWEST, Unavailable, cache_dir, install

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SUITE, PYTHON = "trixie", "3.13"
PACKAGES = "python3,python3-venv,ca-certificates"


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh copy of a minimal Debian."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    kept = cache_dir() / f"debian-{SUITE}"
    if not (kept / ".ready").exists():
        shutil.rmtree(kept, ignore_errors=True)
        order = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(kept)]
        done = subprocess.run(order, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            pytest.skip(f"debootstrap cannot make a system here: {done.stdout[-300:]}")
        (kept / ".ready").touch()
    root = tmp_path_factory.mktemp("debian") / "root"
    subprocess.run(["cp", "-a", str(kept), str(root)], check=True)
    return root


def bring(debian: Path) -> None:
    """Copy the wheel, its dependencies, the smoke test and the client into the system."""
    (debian / "srv" / "dist").mkdir(parents=True)
    (debian / "srv" / "house").mkdir()
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(debian / "srv" / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (debian / "srv" / "dist").glob("*.whl")
    download = [
        sys.executable, "-m", "pip", "download", "-q", "--python-version", PYTHON, "--only-binary=:all:",
        "-d", str(debian / "srv" / "house"), str(wheel),
    ]  # fmt: skip
    subprocess.run(download, check=True, timeout=600)
    shutil.copy(ROOT / ".ci" / "smoke.py", debian / "srv")
    shutil.copy(install(NEWEST).resolve(), debian / "srv" / "claude")


def test_from_nothing_to_a_trace_and_back(debian: Path, tmp_path: Path) -> None:
    """The wheel on a bare system: the demo, the hooks, a real turn as a trace, and after uninstall nothing is left."""
    try:
        bring(debian)
    except Unavailable as reason:
        pytest.skip(str(reason))
    inside = (
        f"mount --rbind /proc {debian}/proc && exec chroot {debian} /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root"
        " LANG=C.UTF-8 PIP_NO_INDEX=1 PIP_FIND_LINKS=/srv/house"
        ' python3 /srv/smoke.py /srv/dist --client /srv/claude --api "$0"'
    )
    with Api(tmp_path / "truth.jsonl", tmp_path) as api:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", inside, api.url],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "smoke: one turn of the real client" in done.stdout
    assert done.stdout.endswith("smoke: passed\n")
    print(done.stdout)  # noqa: T201 - shown with -s
