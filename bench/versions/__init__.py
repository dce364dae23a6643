"""What asv measures of each commit: processor time of a training step, divided into those who spend it.

Place in the flow: `asv continuous` (asv.conf.json) imports this package in an environment of each commit in turn. So it
imports nothing of `bench`, and of the service only what its users know: the command that starts a server, and the
client. All else that it sees of the server is its processes.
"""
