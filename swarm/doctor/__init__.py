"""The examination of a machine before, or while, it runs a server: what is wrong and what to do about it.

Place in the flow: used by the CLI. examination.py runs checks under time limits, checks.py lists them; installed.py,
home.py and address.py hold them. Nothing is changed, neither a ledger nor a running server, and what is written to
measure a disk is removed.
"""
