"""`python -m bench gpu`: what a machine with a GPU shows of the local engine, in one run of some minutes."""
