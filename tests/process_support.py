"""Questions about processes that may end at any moment, as the chaos harness asks them too."""

from bench.process_tree import command_of, descendants, is_running, kill_all

__all__ = ["command_of", "descendants", "is_running", "kill_all"]
