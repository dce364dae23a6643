"""The code that runs in the processes of a replica, under the interpreter that has vLLM."""
