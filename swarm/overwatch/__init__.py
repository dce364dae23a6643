"""The terminal monitor of a server: snapshot.py reads, panels.py draws, dashboard.py keeps the picture live.

Place in the flow: a reader of the HTTP contract like any other client, used by the CLI. It changes nothing on a server.
"""
