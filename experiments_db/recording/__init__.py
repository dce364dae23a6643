"""Records of programs that run without a server."""
