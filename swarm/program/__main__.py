"""The command `python -m swarm.program PROGRAM ...`, for a program file that has no command line of its own."""

import sys

from swarm.processes.imports import plain_httpx

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m swarm.program PROGRAM --server URL --env NAME --job FILE")
    with plain_httpx():
        from swarm.program.command_line import main
    main(sys.argv[1], sys.argv[2:])
