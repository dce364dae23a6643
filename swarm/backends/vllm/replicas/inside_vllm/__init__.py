"""What runs in the processes of a replica, under the interpreter that has vLLM.

Place in the flow: this directory is on the module path of those processes, where nothing else of this package need be
importable; so its modules import the standard library, vLLM and what vLLM needs, and not one another.
"""
