"""Studies that run unattended, under faults that come at random.

Place in the flow: tests/faults/test_study_chaos.py plays them through campaign.py. study.py says what is studied,
deployment.py runs it as a person would who leaves it alone, faults.py draws what goes wrong, injector.py does it, and
checks.py says whether the study came out as if nothing had happened.
"""
