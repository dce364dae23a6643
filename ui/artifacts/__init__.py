"""The recorded files of runs and trainings: what they are, whether they are still there, and how each is loaded."""
