"""Episodes that use several servers at once, for threads and for asyncio.

The modules are imported by their own names, so that a program with one model loads none of them.
"""
