"""The maths of the advantage estimators: a module each, named in the table of swarm/estimators.py.

Each module has one function, `estimate`, from EstimatorInputs to an AdvantageEstimate.
"""
