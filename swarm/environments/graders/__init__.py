"""Built-in graders: they compare a reply, run it, or ask a judge."""
