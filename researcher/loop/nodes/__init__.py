"""The nodes of the research loop, one file each."""
