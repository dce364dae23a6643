"""The command `researcher` as `python -m researcher.cli`."""

from researcher.cli import main

main()
