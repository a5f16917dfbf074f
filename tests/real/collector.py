"""An OpenTelemetry collector: build it with Go if it is not installed, start it on loopback, end it or kill it.

`TURNSPAN_OTELCOL` names a binary, or `otelcol-contrib` is on the PATH. Otherwise it is built from the modules below, once:
they are the components that docs/collector.md uses. Go's module registry lacks the newer versions of the file receiver;
0.145 compiles with the other modules of 0.160.

A configuration is one or several YAML files. The first is a recipe from the documentation, word for word; the collector
merges the others into it, and they only replace addresses and paths.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from typing import TYPE_CHECKING

from real.installing import Unavailable, installed, order
from real.server import Server

if TYPE_CHECKING:
    from pathlib import Path

VERSION, STABLE, FILE_RECEIVER = "v0.160.0", "v1.66.0", "v0.145.0"
BUILD_S = 1_800
LOG_S = 30
CORE, CONTRIB = "go.opentelemetry.io/collector", "github.com/open-telemetry/opentelemetry-collector-contrib"
# By kind: the modules of the components, and their versions.
COMPONENTS = {
    "receiver": {f"{CORE}/receiver/otlpreceiver": VERSION, f"{CONTRIB}/receiver/otlpjsonfilereceiver": FILE_RECEIVER},
    "processor": {
        f"{CORE}/processor/batchprocessor": VERSION,
        f"{CORE}/processor/memorylimiterprocessor": VERSION,
        f"{CONTRIB}/processor/filterprocessor": VERSION,
    },
    "exporter": {
        f"{CORE}/exporter/otlpexporter": VERSION,
        f"{CORE}/exporter/otlphttpexporter": VERSION,
        f"{CORE}/exporter/debugexporter": VERSION,
        f"{CONTRIB}/exporter/fileexporter": VERSION,
    },
    "extension": {
        f"{CONTRIB}/extension/storage/filestorage": VERSION,
        f"{CONTRIB}/extension/bearertokenauthextension": VERSION,
    },
}
FRAME = {
    f"{CORE}/otelcol": VERSION,
    f"{CORE}/component": STABLE,
    f"{CORE}/confmap": STABLE,
    f"{CORE}/confmap/provider/envprovider": STABLE,
    f"{CORE}/confmap/provider/fileprovider": STABLE,
    f"{CONTRIB}/pkg/stanza": VERSION,  # the file receiver's own version does not compile with the rest
}
MAIN = """package main

import (
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
{imports}
)

func factories() (otelcol.Factories, error) {{
	found := otelcol.Factories{{Telemetry: otelconftelemetry.NewFactory()}}
	var err error
{factories}
	return found, err
}}

func main() {{
	providers := []confmap.ProviderFactory{{fileprovider.NewFactory(), envprovider.NewFactory()}}
	settings := otelcol.CollectorSettings{{
		BuildInfo: component.BuildInfo{{Command: "otelcol", Version: "{version}"}},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{{
			ResolverSettings: confmap.ResolverSettings{{ProviderFactories: providers}},
		}},
	}}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {{
		log.Fatal(err)
	}}
}}
"""
FACTORIES = """	if found.{field}, err = otelcol.MakeFactoryMap[{kind}.Factory]({calls}); err != nil {{
		return found, err
	}}"""


def find() -> str:
    """Return the binary, built if necessary. Raises Unavailable."""
    return os.environ.get("TURNSPAN_OTELCOL") or shutil.which("otelcol-contrib") or str(_built())


def _built() -> Path:
    with installed(f"otelcol-{VERSION}") as (place, is_ready):
        if not is_ready:
            go = shutil.which("go")
            if go is None:
                raise Unavailable("neither otelcol-contrib nor go is on the PATH, and TURNSPAN_OTELCOL is not set")
            _build(go, place)
        return place / "otelcol"


def _build(go: str, place: Path) -> None:
    own = place / "module"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    (own / "main.go").write_text(_main())
    modules = {**FRAME, **{path: version for paths in COMPONENTS.values() for path, version in paths.items()}}
    required = "".join(f"\t{path} {version}\n" for path, version in modules.items())
    (own / "go.mod").write_text(f"module turnspan.test/otelcol\n\ngo 1.25\n\nrequire (\n{required})\n")
    order(
        *("nice", "-n", "10", go, "build", "-mod=mod", "-buildvcs=false", "-trimpath", "-ldflags=-s -w"),
        *("-o", place / "otelcol", "."),
        cwd=own,
        timeout_s=BUILD_S,
    )


def _main() -> str:
    imports = [f'\t"{path}"' for paths in COMPONENTS.values() for path in paths]
    imports += [f'\t"{CORE}/{kind}"' for kind in COMPONENTS]
    factories = [
        FACTORIES.format(
            field=f"{kind.capitalize()}s",
            kind=kind,
            calls=", ".join(f"{path.rpartition('/')[2]}.NewFactory()" for path in paths),
        )
        for kind, paths in COMPONENTS.items()
    ]
    return MAIN.format(imports="\n".join(imports), factories="\n".join(factories), version=VERSION.removeprefix("v"))


class Collector(Server):
    """A collector with a recipe, and what replaces the recipe's addresses and paths."""

    def __init__(self, binary: str, directory: Path, recipe: str, replaced: dict, **env: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "recipe.yaml").write_text(recipe)
        replaced = {**replaced, "service": {"telemetry": {"metrics": {"level": "none"}}}}  # else it listens on 8888
        (directory / "replaced.yaml").write_text(json.dumps(replaced))  # JSON is YAML
        self._command = [binary, "--config", "recipe.yaml", "--config", "replaced.yaml"]
        self._directory, self._env = directory, env
        endpoint = replaced.get("receivers", {}).get("otlp", {}).get("protocols", {}).get("http", {}).get("endpoint")
        self._address = endpoint and ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        self.start(self._command, directory, **env)

    def is_up(self) -> bool:
        """Whether it listens; without a port, whether it says that it is ready."""
        if not self._address:
            return "Everything is ready" in self.log
        try:
            socket.create_connection(self._address, timeout=1).close()
        except OSError:
            return False
        return True

    @property
    def log(self) -> str:
        """What it has printed since it was started."""
        return self._log.read_text()

    def wait_for_line(self, words: str) -> None:
        """Wait until its log contains some words, with a deadline."""
        deadline = time.monotonic() + LOG_S
        while words not in self.log:
            assert time.monotonic() < deadline, f"{words!r} is not in its log:\n{self.log[-2000:]}"
            time.sleep(0.1)

    def kill(self) -> None:
        """End it without a chance to write anything."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """Start it again; end it first if it runs."""
        if self._process.poll() is None:
            self.__exit__()
        self.start(self._command, self._directory, **self._env)
        self.__enter__()


def validate(binary: str, directory: Path, recipe: str, **env: str) -> None:
    """Have the collector read a recipe and check it, without starting anything. Raises Unavailable if it refuses it."""
    (directory / "recipe.yaml").write_text(recipe)
    order(binary, "validate", "--config", directory / "recipe.yaml", **env)
