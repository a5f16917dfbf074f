"""Dependencies: what pyproject.toml declares is what the code imports."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from test_layers import MODULES, imports

from turnspan.settings.options import OPTION

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = packages_distributions()
DECLARED = {re.match(r"[\w.-]+", line)[0]: line for line in PROJECT["dependencies"]}

# Packages that are used by the name of an entry point: its group, and its name, which is the default of a setting.
BY_ENTRY_POINT = {
    "opentelemetry-exporter-otlp": ("opentelemetry_traces_exporter", OPTION["exporter"].default),
}


@cache
def files_of(name):
    """Return the files that a distribution installs."""
    return {file.as_posix() for file in distribution(name).files or ()}


def distribution_of(name):
    """Return the distribution that an imported name comes from; `name` may end in a class or a function."""
    top, *inside = name.split(".")
    candidates = sorted(set(DISTRIBUTIONS.get(top, ())))
    if len(candidates) <= 1:
        return candidates[0] if candidates else top
    while inside:  # a namespace that several distributions share
        path = "/".join((top, *inside))
        for candidate in candidates:
            if {f"{path}.py", f"{path}/__init__.py"} & files_of(candidate):
                return candidate
        inside.pop()
    return top


@cache
def imported():
    """Return the distributions that the code imports, each with an example of who imports it."""
    names = {name: module for module in MODULES for name in imports(module)[1]}
    foreign = {name: module for name, module in names.items() if name.split(".")[0] not in sys.stdlib_module_names}
    return {distribution_of(name): f"{module} imports {name}" for name, module in foreign.items()}


def test_everything_imported_is_declared():
    """An import from outside the standard library comes from a declared package, not from one that it brings."""
    undeclared = {name: why for name, why in imported().items() if name not in DECLARED}
    assert undeclared == {}


def test_everything_declared_is_used():
    """A package that no code uses is not installed on the user's machine."""
    assert DECLARED.keys() == imported().keys() | BY_ENTRY_POINT.keys()
    for name, (group, entry_point) in BY_ENTRY_POINT.items():
        assert (group, entry_point) in {(found.group, found.name) for found in distribution(name).entry_points}


def test_an_extra_is_used_and_not_required():
    """What an extra installs is imported by name if it is there; nothing else needs it."""
    (line,) = PROJECT["optional-dependencies"]["fast"]
    assert 'import_module("isal.isal_zlib")' in MODULES["backends.http_transport"].read_text(encoding="utf-8")
    assert re.fullmatch(r"isal>=\d+(\.\d+)*,<\d+", line)


def test_every_range_has_both_ends():
    """Each package has a lowest version, which CI tests, and an upper bound at the next major version."""
    for name, line in DECLARED.items():
        assert re.fullmatch(rf"{re.escape(name)}>=\d+(\.\d+)*,<\d+", line), line
