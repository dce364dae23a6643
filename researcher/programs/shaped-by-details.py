"""The training reward has a part for the details of the grade, such as the share of tests that pass."""

from swarm.program import main

WEIGHT = 0.2


def reward(task, transcript, grade):
    """Return the score, and a little for the mean of the details that are numbers from 0 to 1."""
    values = [value for value in grade.details.values() if isinstance(value, int | float)]
    shares = [float(value) for value in values if not isinstance(value, bool) and 0 <= value <= 1]
    return grade.score + (WEIGHT * sum(shares) / len(shares) if shares else 0.0)


if __name__ == "__main__":
    main(__file__)
