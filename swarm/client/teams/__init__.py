"""Episodes that use several servers at once, for threads and for asyncio.

Its modules are imported by their names: a program of one model loads none of them.
"""
