"""The run of a job as every part of the server sees it: what was started, the state of its engine, its evaluations.

Place in the flow: above the ledger, below everything that samples, trains or answers.
"""
