"""The sweep that the default settings of the bundled models come from."""
