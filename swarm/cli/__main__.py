"""`python -m swarm.cli` is the command `swarm`."""

from swarm.cli import main

main()
