"""`python -m tests`: everything a change must pass, in the order that fails fastest."""

from __future__ import annotations

import subprocess
import sys

CHECKS = (
    (sys.executable, "-m", "ruff", "check", "."),
    (sys.executable, "-m", "mypy"),
    # Beforehand: a test that forbids files to grow would otherwise leave half a .pyc behind, for all others to stumble over.
    (sys.executable, "-m", "compileall", "-q", "src"),
    # Four at a time: many tests wait for processes, not for a core. A file stays together: some share what is costly.
    (sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", *sys.argv[1:]),
)


def main() -> int:
    """Run each check; the first that fails decides."""
    for command in CHECKS:
        print("$", *command[1:], flush=True)  # noqa: T201  it is what a person reads here
        if (code := subprocess.run(command, check=False).returncode) != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
