"""The recording of trainings: the ledger of a server is read, also while the server runs, and written to sinks.

Place in the flow: `swarm start` runs it in a process of its own, so that a sink that is slow or fails costs the server
nothing. `swarm import` runs it once on a ledger that nobody serves. It changes nothing in the ledger.
"""
