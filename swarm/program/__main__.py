"""`python -m swarm.program PROGRAM ...`: a program file that has no command line of its own."""

import sys

from swarm.program.command_line import main

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m swarm.program PROGRAM --server URL --env NAME --job FILE")
    main(sys.argv[1], sys.argv[2:])
