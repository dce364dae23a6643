"""Studies that run unattended, under faults that come at random: `python -m bench chaos`.

Place in the flow: a harness beside the benchmarks. command.py is the way in; study.py says what is studied,
deployment.py runs it as a person would who leaves it alone, faults.py draws what goes wrong, injector.py does it, and
checks.py says whether the study came out as if nothing had happened.
"""
