"""Checks of the installed package."""

from __future__ import annotations

import base64
import csv
import hashlib
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan import __version__
from turnspan.health.checks import CheckGroup
from turnspan.hook import PACKAGE_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.health.checks import Check

GROUP: Final = CheckGroup("Installation")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def package_checks() -> Iterator[Check]:
    """The interpreter, the files of the package, and its dependencies."""
    yield GROUP.good(f"turnspan {__version__} on Python {platform.python_version()}, {sys.executable}")
    try:
        package = metadata.distribution("turnspan")
    except metadata.PackageNotFoundError:
        yield GROUP.good(f"running from {PACKAGE_ROOT}, not installed")
        return
    yield from installed_checks(package)


def installed_checks(package: metadata.Distribution) -> Iterator[Check]:
    """Whether the files and the dependencies of the package are complete."""
    damaged = sorted(_damaged(package))
    if damaged:
        some = ", ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
        yield GROUP.bad(f"files of the package are missing or changed: {some}", "reinstall turnspan")
    missing = sorted(_missing(package))
    if missing:
        yield GROUP.bad(
            f"dependencies are not installed: {', '.join(missing)}",
            f"run `{sys.executable} -m pip install {' '.join(missing)}`",
        )
    if not damaged and not missing:
        yield GROUP.good("the package and its dependencies are complete")


def _damaged(package: metadata.Distribution) -> Iterator[str]:
    """The files that differ from what was installed. An editable installation has none to compare."""
    # Not `package.files`: since Python 3.12 it omits missing files.
    for name, expected, *_ in filter(None, csv.reader((package.read_text("RECORD") or "").splitlines())):
        if not name.endswith(".py") or not expected:
            continue
        mode, _, value = expected.partition("=")
        try:
            content = Path(str(package.locate_file(name))).read_bytes()
        except OSError:
            yield name
            continue
        digest = base64.urlsafe_b64encode(hashlib.new(mode, content).digest()).rstrip(b"=").decode()
        if digest != value:
            yield name


def _missing(package: metadata.Distribution) -> Iterator[str]:
    for requirement in package.requires or ():
        name = _NAME.match(requirement)
        if name is None or "extra ==" in requirement:
            continue
        try:
            metadata.distribution(name[0])
        except metadata.PackageNotFoundError:
            yield name[0]
