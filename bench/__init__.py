"""The speed of the service: one module per benchmark, each with a `run(seconds)` that returns its results.

Place in the flow: beside the packages, in the repository only; nothing imports it. It measures real parts from outside
and does not know which figures are good.
"""
