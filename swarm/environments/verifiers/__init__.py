"""Environments of the library verifiers, which runs its own agents in a separate interpreter."""
