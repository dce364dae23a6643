"""Models that a user's machine has by name, beside the bundled ones."""
