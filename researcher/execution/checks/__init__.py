"""The checks of a program and its job before a launch."""
