"""The script that joins the sandbox's cgroup, opens its filter of system calls, and then becomes bubblewrap."""

from __future__ import annotations

import os
import sys


def main(cgroup: str, filter_code: str, command: list[str]) -> None:
    """Become `command`, which is bubblewrap; `filter_code` is hexadecimal, and it or `cgroup` may be empty.

    It is run by its path and uses the standard library alone, so that it takes only milliseconds.
    """
    if cgroup:
        with open(os.path.join(cgroup, "cgroup.procs"), "w", encoding="ascii") as members:
            members.write(str(os.getpid()))
    if filter_code:
        reading, writing = os.pipe()
        # A filter fits into the buffer of a pipe, so that this write does not wait for a reader.
        os.write(writing, bytes.fromhex(filter_code))
        os.close(writing)
        os.set_inheritable(reading, True)
        command = [command[0], "--seccomp", str(reading), *command[1:]]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
