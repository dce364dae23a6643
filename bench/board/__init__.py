"""The board: processor time and speed of two versions, measured side by side, and a record of what each version took.

In the order of the flow: command.py, checkout.py (both trees), rounds.py with probe.py (the measurement), verdict.py
(the statistics), versions.py (the record), table.py (the page of it); figures.py says what is measured.
"""
