"""The terminal monitor of a server: snapshot.py reads, panels.py draws, and dashboard.py keeps the screen live.

Place in the flow: the CLI uses it, and it reads a server by HTTP as any other client does. It changes nothing there.
"""
