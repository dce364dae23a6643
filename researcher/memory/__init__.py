"""The memory between studies: what findings of one database say about the same question."""
