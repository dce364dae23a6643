"""Becomes bubblewrap: joins the sandbox's cgroup, opens its filter of system calls, and runs it in its own place.

Place in the flow: sandbox.py puts this script before bubblewrap's own command line. It is run by path with the standard
library alone, so that it costs some milliseconds.

    entry.py CGROUP FILTER BWRAP ...        CGROUP is a folder, FILTER hexadecimal; each may be empty
"""

from __future__ import annotations

import os
import sys


def main(cgroup: str, filter_code: str, command: list[str]) -> None:
    if cgroup:
        with open(os.path.join(cgroup, "cgroup.procs"), "w", encoding="ascii") as members:
            members.write(str(os.getpid()))
    if filter_code:
        reading, writing = os.pipe()
        # A filter is smaller than a pipe, so nobody has to read meanwhile.
        os.write(writing, bytes.fromhex(filter_code))
        os.close(writing)
        os.set_inheritable(reading, True)
        command = [command[0], "--seccomp", str(reading), *command[1:]]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
