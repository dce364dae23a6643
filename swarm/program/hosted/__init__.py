"""A program whose functions run in a process of their own, in a sandbox where the program is foreign."""
