"""The package: what a wheel contains, that building it twice gives the same bytes, and the files around it."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from turnspan import __version__

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def build(source, out, umask=0o022):
    """Build the sdist and the wheel of a directory; return their paths."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=source, check=True, capture_output=True,
        umask=umask, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
    )  # fmt: skip
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel of this directory."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(built, tmp_path):
    """Built again with another umask, and the wheel from the unpacked sdist: the same bytes."""
    sdist, wheel = built
    again = build(ROOT, tmp_path / "again", umask=0o077)
    assert [path.read_bytes() for path in again] == [sdist.read_bytes(), wheel.read_bytes()]
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    _, from_sdist = build(tmp_path / f"turnspan-{__version__}", tmp_path / "dist")
    assert from_sdist.read_bytes() == wheel.read_bytes()


def test_the_wheel_has_every_file_of_the_package(built):
    """Prices, the page and the plugin are files that no import would miss."""
    with zipfile.ZipFile(built[1]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()}
    sources = {path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    expected = {path.relative_to(ROOT / "src").as_posix() for path in sources}
    plugin = {path for path in (ROOT / "hooks").rglob("*") if path.is_file()}
    expected |= {f"turnspan/plugin/{path.relative_to(ROOT / 'hooks').as_posix()}" for path in plugin}
    assert names == expected
    assert {"turnspan/py.typed", "turnspan/trace/prices.json", "turnspan/plugin/.claude-plugin/plugin.json"} <= names
    for script in ("turnspan-hook", "find-turnspan"):
        assert modes[f"turnspan/plugin/{script}"] & 0o111


def test_the_sdist_has_what_its_tests_need_and_nothing_that_is_not_ours(built):
    """Sources, tests, fixtures and documents; no virtual environment, cache or result of a run."""
    with tarfile.open(built[0]) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    wanted = {"src", "tests", "fixtures", "docs", "hooks", "benchmarks", "README.md", "CHANGELOG.md", "LICENSE"}
    assert wanted <= tops
    assert not tops & {".venv", ".git", ".demo", "dist", "build", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def test_the_page_on_a_registry_can_be_rendered(built):
    """`twine check` would find the same: a description in Markdown, a licence, keywords and classifiers."""
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        head, _, description = wheel.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert "License-Expression: MIT" in head
    assert "License-File: LICENSE" in head
    assert "Keywords: " in head
    assert description.startswith("# turnspan")


# ---- files around the package


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_valid_and_careful(path):
    """A workflow can read the repository only, unless a job asks for more; every job has a time limit."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "uses" in job or job["timeout-minutes"] <= 120
        for step in job.get("steps", ()):
            assert ("uses" in step) != ("run" in step)
            assert "${{ github.event" not in step.get("run", ""), "text of a pull request is not a command"
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"]), "an action is pinned by its commit"


def test_every_python_is_tested_on_every_system():
    """Linux, macOS and Windows, with Python 3.11 to 3.14."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]
    versions = ["3.11", "3.12", "3.13", "3.14"]
    assert jobs["suite"]["strategy"]["matrix"] == {"os": ["ubuntu-latest", "macos-latest"], "python": versions}
    assert jobs["windows"]["strategy"]["matrix"]["python"] == versions
    assert len(jobs["smoke"]["strategy"]["matrix"]["os"]) == 3


def test_a_release_is_published_without_a_stored_password():
    """Trusted publishing and attestations: only the jobs that need it may ask for an identity."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    with_identity = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert with_identity == {"build", "publish"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert jobs["build"]["needs"] == "test"


@pytest.mark.parametrize("path", [*TEMPLATES, ROOT / ".pre-commit-config.yaml"], ids=lambda path: path.name)
def test_templates_are_valid(path):
    """Each template is a form with fields, and asks for no transcript of a real session."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert found
    for field in found.get("body", ()):
        assert field["type"] in {"markdown", "textarea", "input"}
        assert field["attributes"].get("label") or field["attributes"].get("value")


def test_releases_have_dates():
    """Each section of the changelog is unreleased, or a version with the day of its release."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(20\d\d-\d\d-\d\d\)", title) for title in others)
    assert first == "Unreleased" or re.fullmatch(r"\d+\.\d+\.\d+ \(20\d\d-\d\d-\d\d\)", first)
