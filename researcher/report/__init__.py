"""The report of a study: facts from the database, figures, Markdown, HTML and PDF."""
