"""`python -m swarm.cli` is the command `swarm`."""

from swarm.cli.commands import main

main()
