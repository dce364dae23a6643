"""Curves of runs and trainings: their x values, their charts and the controls above them."""
