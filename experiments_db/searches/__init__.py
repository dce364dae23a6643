"""Searches over many runs and trainings: their episodes, and the servers that they ran on. Only the explorer asks."""
