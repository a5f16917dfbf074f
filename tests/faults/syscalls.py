"""Finds the system calls of a worker on our files and sockets, and makes one of them fail."""

from __future__ import annotations

import re
from dataclasses import dataclass

CALLS = "%file,%desc,%network"
_CALL = re.compile(r"^(?:\d+ +)?([a-z0-9_]+)\(")
# Possible errors by system call; all others can fail with EIO. EACCES is missing for reads: an unreadable transcript is
# treated like a missing one.
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
    """The n-th call of a system call during one event."""

    event: int
    name: str
    when: int
    line: str

    def __str__(self):
        return f"event {self.event}, {self.name} number {self.when}: {self.line}"

    def prefix(self, harm):
        """Return the command prefix that makes this call fail: `signal=KILL`, `error=EIO`."""
        inject = f"inject={self.name}:{harm}:when={self.when}"
        quicker = [] if harm.startswith("signal") else ["--seccomp-bpf"]  # strace 6.1 does not inject signals with it
        return ["strace", "-f", *quicker, "-o", "/dev/null", "-e", f"trace={self.name}", "-e", inject]


def points(event, log, base):
    """Return the calls in a log that concern files below a directory, or sockets."""
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
    """Return the errors that a call can fail with."""
    is_to_write = point.name == "openat" and ("O_WRONLY" in point.line or "O_RDWR" in point.line)
    return ERRORS.get("openat to write" if is_to_write else point.name, ("EIO",))


def counting(log):
    """Return the command prefix that logs all calls."""
    return ["strace", "-f", "-yy", "-o", str(log), "-e", f"trace={CALLS}"]
