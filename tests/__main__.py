"""`python -m tests`: everything a change must pass, in the order that fails fastest.

The checks run with PATH, HOME and LANG as their only environment: no variable of this machine decides the result.
"""

from __future__ import annotations

import os
import subprocess
import sys

CHECKS = (
    (sys.executable, "-m", "ruff", "check", "."),
    (sys.executable, "-m", "mypy"),
    # First, because a test that limits the size of files would leave truncated .pyc files behind.
    (sys.executable, "-m", "compileall", "-q", "src"),
    # Four at a time: many tests wait for processes, not for a core. A file stays together: its tests share fixtures.
    (sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", *sys.argv[1:]),
)


def main() -> int:
    """Run the checks; return the exit code of the first that fails, or 0."""
    env = {"LANG": "C.UTF-8"} | {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    for command in CHECKS:
        print("$", *command[1:], flush=True)  # noqa: T201  shown to the user
        if (code := subprocess.run(command, check=False, env=env).returncode) != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
