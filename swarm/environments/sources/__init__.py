"""Where environments come from: the bundled families, folders, task files and libraries."""
