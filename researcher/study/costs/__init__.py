"""The cost of the attempts of each arm, in training and in final evaluation, from the ledgers of the servers.

Place in the flow: the evaluator computes costs (attempts.py) and stores them with the run. The report, the decisions
and the explorer read them by arm (arms.py). No number comes from a program, and this package judges nothing.
"""
