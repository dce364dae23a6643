"""The terminal monitor of a server, which reads it by HTTP and changes nothing there."""
