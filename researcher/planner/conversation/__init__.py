"""The conversation with a language model: streaming, tool calls, waiting, and the record of every request."""
