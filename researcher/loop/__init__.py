"""The research loop: its graph, its nodes and the process that works on a study."""
