"""`python -m bench gpu`: what a machine with a GPU shows of the local engine, in one run of some minutes.

Place in the flow: beside the other benchmarks, in the repository only. `command.py` runs the parts of `schedule.py` one
after another, each in a process of its own with a time box. On a CPU the same parts run on much smaller models, so that
all of this works before a GPU is at hand.
"""
