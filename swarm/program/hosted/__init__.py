"""A program whose functions run in a process of their own, and in a sandbox if the program is foreign."""
