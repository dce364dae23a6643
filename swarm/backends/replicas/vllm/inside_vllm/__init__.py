"""The code that runs in the processes of a replica, under the interpreter that has vLLM.

Place in the flow: this directory is on the module path of those processes. Nothing else of this package need be
importable there. Its modules therefore import only the standard library, vLLM and its dependencies, and not one
another.
"""
