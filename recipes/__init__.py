"""The recipes of the bundled base models, which are not part of the package."""
