"""Imports point inwards: a table of what each room may import, checked against the code."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "turnspan"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}

# Each room, and the rooms it may import besides itself. A file in the root of the package is a room.
MAY_IMPORT = {
    # For all rooms: these know nothing about the rest.
    "errors": set(),
    "lazy": set(),
    "processes": set(),
    "text": set(),
    "files": {"errors"},
    # Pure: values in, values out.
    "transcript": {"lazy"},
    "secrets": {"errors", "lazy"},
    "trace": {"transcript", "secrets", "errors", "lazy", "text"},
    # Reading, settings, sending.
    "source": {"trace", "transcript", "errors", "lazy"},
    "claude": {"errors", "files", "hook", "lazy", "transcript"},
    "settings": {"claude", "errors", "lazy", "files", "text"},
    "backends": {"trace", "settings", "errors", "lazy", "files"},
    "delivery": {"backends", "claude", "settings", "source", "trace", "secrets", "errors", "files"},
    # One event.
    "log": {"backends", "delivery", "errors", "files", "settings", "source"},
    "hook": set(),
    "worker": {"claude", "delivery", "errors", "hook", "log", "files", "settings", "source", "transcript"},
    # What people look at.
    "index": {
        "delivery", "errors", "files", "processes", "secrets", "settings", "source", "text", "trace",
    },
    # Commands.
    "bulk": {
        "backends", "claude", "delivery", "errors", "index", "log", "files", "processes", "settings",
        "source", "text", "trace", "worker",
    },
    "page": {"delivery", "errors", "index", "files", "settings", "source", "text", "trace"},
    "health": {
        "backends", "bulk", "claude", "delivery", "errors", "hook", "index", "log", "files", "settings",
        "source", "text", "trace", "transcript",
    },
    "commands": {
        "backends", "bulk", "claude", "delivery", "errors", "health", "hook", "index", "files", "secrets", "settings",
        "source", "text", "trace", "page",
    },
    "cli": {"commands", "errors"},
    # For scripts, notebooks and third-party backends.
    "api": {"backends", "delivery", "errors", "secrets", "settings", "source", "trace"},
    "__main__": {"cli", "hook"},
}  # fmt: skip
# Libraries that only these modules may import.
ONLY_IN = {
    "filelock": ("files",),
    "fcntl": (),
    "opentelemetry": ("backends",),
    "grpc": ("backends",),
    "langfuse": ("backends", "langfuse"),
    "genai_prices": (),
    "markdown_it": ("page.content",),
    "pygments": ("page.content",),
}
# Slow to import: a worker that handles one event does not load them.
HEAVY = {
    "click",
    "rich",
    "opentelemetry",
    "grpc",
    "langfuse",
    "requests",
    "httpx",
    "asyncio",
    "markdown_it",
    "pygments",
}


@cache
def tree(module):
    """Return a module's code."""
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def names_in(nodes, module):
    """Return (our own modules, others) that some code imports."""
    own, others = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import hides where it points"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] != "turnspan":
                others.add(name)
                continue
            inside = name.removeprefix("turnspan").removeprefix(".")
            while inside and inside not in MODULES:
                inside = inside.rpartition(".")[0]
            own.add(inside)
    return own, others


@cache
def imports(module):
    """Return everything a module imports, including late imports and imports for types."""
    return names_in(ast.walk(tree(module)), module)


@cache
def loaded(module):
    """Return what is loaded together with a module."""
    return names_in(tree(module).body, module)


def loaded_with(*modules):
    """Return all of our modules that are loaded with these."""
    seen, waiting = set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += [name for name in loaded(module)[0] if name]
    return seen


def room(module):
    """Return the room a module is in."""
    return module.split(".")[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_inwards(module):
    """A module imports from its own room and from those that the table allows."""
    found = {room(name) for name in imports(module)[0] if name}  # the package itself only has its version
    assert found <= MAY_IMPORT.get(room(module), set()) | {room(module)}


def test_the_table_names_every_room():
    """Every room is in the table, and every room of the table exists."""
    assert MAY_IMPORT.keys() == {room(module) for module in MODULES} - {"__init__"}


def test_the_table_allows_only_what_is_used():
    """A permission that no import needs is removed from the table."""
    used = {
        each: {room(name) for m in MODULES if room(m) == each for name in imports(m)[0] if name} for each in MAY_IMPORT
    }
    assert {each: allowed - used[each] for each, allowed in MAY_IMPORT.items() if allowed - used[each]} == {}


def test_one_name_is_one_thing():
    """No two classes have the same name. The `Turn` of the public interface is what a turn of `transcript` becomes."""
    defined = Counter(node.name for module in MODULES for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef))
    assert {name for name, times in defined.items() if times > 1} == {"Turn"}


def test_modules_and_functions_stay_short():
    """A module has at most 450 lines, a function 60; a command is as long as its help."""
    functions = [
        f"{module}.{node.name}" for module in MODULES for node in ast.walk(tree(module))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60 and room(module) != "commands"
    ]  # fmt: skip
    assert functions == []
    assert [name for name, path in MODULES.items() if len(path.read_text(encoding="utf-8").splitlines()) > 450] == []


def test_no_rooms_import_each_other():
    """The rooms have an order: no room reaches itself through what it may import."""
    order = TopologicalSorter(MAY_IMPORT)
    order.prepare()  # raises CycleError, which names the rooms


def test_only_main_imports_the_commands():
    """Everything except `__main__` works without the command line."""
    for module in MODULES:
        if room(module) != "__main__":
            assert "cli" not in imports(module)[0], module


def test_the_hook_imports_only_the_standard_library():
    """The hook runs for every event: on start it imports only modules that the interpreter has already loaded."""
    own, others = imports("hook")
    assert own == set()
    assert {name.split(".")[0] for name in others} <= sys.stdlib_module_names
    first = [node for node in tree("hook").body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {alias.name for node in first for alias in node.names} <= {"os", "sys"}


@pytest.mark.parametrize("library", sorted(ONLY_IN))
def test_libraries_are_imported_where_they_belong(library):
    """A library is imported only where the table says."""
    users = {m for m in MODULES if any(name.split(".")[0] == library for name in imports(m)[1])}
    assert all(module.startswith(ONLY_IN[library]) for module in users), users


def test_an_event_loads_nothing_heavy():
    """Before a worker knows the destination, it loads no terminal library, no server and no SDK."""
    seen = loaded_with("worker", "source.reader", "delivery.deliver")
    for module in seen:
        assert not {name.split(".")[0] for name in loaded(module)[1]} & HEAVY, module
    assert {"transcript.grouping", "trace.build"} <= seen


def test_a_worker_loads_nothing_heavy_through_a_library():
    """The libraries that a worker imports do not load the heavy ones either."""
    code = "import sys, turnspan.worker, turnspan.source.reader, turnspan.delivery.deliver; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & (HEAVY | {"sqlite3"})


def test_an_event_with_nothing_new_loads_nothing_that_reads_or_builds():
    """The modules that read and build are loaded only if the transcript has grown."""
    seen = loaded_with("worker")
    assert not {module for module in seen if module.startswith(("trace.", "secrets."))}
    assert {module for module in seen if module.startswith("transcript.")} == {"transcript.carry"}
    assert {"delivery.state", "source.sessions"} <= seen
    assert not {"source.reader", "delivery.deliver"} & seen


def test_the_core_needs_one_library():
    """From the file to the trace only msgspec and the standard library are needed."""
    for module in MODULES:
        if room(module) in {"transcript", "trace", "secrets", "source", "errors"}:
            foreign = {name.split(".")[0] for name in imports(module)[1]} - sys.stdlib_module_names
            assert foreign <= {"msgspec"}, module


def test_transcripts_and_traces_are_pure():
    """Parsing and building depend on no clock, randomness, network or environment."""
    for module in MODULES:
        if room(module) not in {"transcript", "trace", "secrets"}:
            continue
        others = {name.split(".")[0] for name in imports(module)[1]}
        assert not others & {"os", "time", "random", "secrets", "socket", "subprocess", "uuid", "threading"}, module
        named = {node.attr for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute)}
        assert not named & {"now", "today", "utcnow", "environ"}, module


def test_reading_uses_no_clock():
    """The caller that reads a session passes the time."""
    for module in ("source.tail", "source.sessions", "source.reader"):
        assert "time" not in {name.split(".")[0] for name in imports(module)[1]}, module


def test_a_session_is_opened_in_one_place():
    """Every `Reading` comes from a `Reader`, so that no argument that decides about its traces can be forgotten."""
    opened = [name for name, path in MODULES.items() for line in path.read_text().splitlines() if " Reading(" in line]
    assert opened == ["source.reader"]
