"""The recording of trainings: the ledger of a server is read, also while the server runs, and written to sinks."""
