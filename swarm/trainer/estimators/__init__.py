"""The maths of the advantage estimators: modules with a function `estimate`, named in swarm/estimators.py."""
