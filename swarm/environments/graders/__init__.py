"""Built-in graders: what a reply is worth, by comparison, by running it, or by a judge."""
