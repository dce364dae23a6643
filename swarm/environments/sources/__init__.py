"""The sources of environments: bundled families, folders, task files and libraries."""
