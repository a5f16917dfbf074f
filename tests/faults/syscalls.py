"""Which system calls a worker makes that touch our files or a socket, and how to make one of them go wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass

CALLS = "%file,%desc,%network"
_CALL = re.compile(r"^(?:\d+ +)?([a-z0-9_]+)\(")
# What can come of a call, by its name; the rest can at least fail with EIO. That a transcript may not be read (EACCES) is
# an answer and not a failure: it is as good as not there.
ERRORS = {
    "openat": ("EMFILE", "ENFILE", "EIO", "EINTR"),
    "openat to write": ("EACCES", "EMFILE", "ENFILE", "EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR"),
    "mkdir": ("EACCES", "ENOSPC", "EDQUOT", "EROFS"),
    "newfstatat": ("EIO", "ENOMEM"),
    "fstat": ("EIO",),
    "read": ("EIO", "EINTR"),
    "pread64": ("EIO", "EINTR"),
    "write": ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR"),
    "rename": ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES"),
    "flock": ("ENOLCK", "EINTR", "EIO", "ENOSYS"),
    "ftruncate": ("EIO", "EFBIG", "EINTR"),
    "mmap": ("ENOMEM",),
    "access": ("EACCES", "EROFS", "EIO"),
    "socket": ("EMFILE", "ENFILE", "EACCES", "ENOMEM"),
    "connect": ("ECONNREFUSED", "ENETUNREACH", "ETIMEDOUT", "EINTR"),
    "sendto": ("EPIPE", "ECONNRESET", "ENOMEM", "EINTR"),
    "recvfrom": ("ECONNRESET", "ETIMEDOUT", "EIO", "EINTR"),
    "close": ("EIO", "EINTR"),
}


@dataclass(frozen=True)
class Point:
    """The n-th call of a name, in the event of a number."""

    event: int
    name: str
    when: int
    line: str

    def __str__(self):
        return f"event {self.event}, {self.name} number {self.when}: {self.line}"

    def prefix(self, harm):
        """Return the command that has this call go wrong: `signal=KILL`, `error=EIO`."""
        inject = f"inject={self.name}:{harm}:when={self.when}"
        quicker = [] if harm.startswith("signal") else ["--seccomp-bpf"]  # strace 6.1 sends no signals with it
        return ["strace", "-f", *quicker, "-o", "/dev/null", "-e", f"trace={self.name}", "-e", inject]


def points(event, log, base):
    """Return the calls of a log that touch what lies below a directory, or a socket."""
    counts: dict[str, int] = {}
    found = []
    for line in log.read_text(errors="replace").splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        name = call[1]
        counts[name] = counts.get(name, 0) + 1
        if str(base) in line or "<TCP" in line or name == "socket":
            found.append(Point(event, name, counts[name], line.split(" ", 1)[1].replace(str(base), "…")[:200].strip()))
    return found


def errors_of(point):
    """Return what can come of a call."""
    is_to_write = point.name == "openat" and ("O_WRONLY" in point.line or "O_RDWR" in point.line)
    return ERRORS.get("openat to write" if is_to_write else point.name, ("EIO",))


def counting(log):
    """Return the command that writes all calls into a log."""
    return ["strace", "-f", "-yy", "-o", str(log), "-e", f"trace={CALLS}"]
