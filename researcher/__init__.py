"""The autonomous researcher: topic in, planned and judged training runs, report out.

It uses only public names of swarm.
"""
