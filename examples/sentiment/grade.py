"""Grade one attempt: `task` is a row of tasks.py, and `transcript` lists the messages of the attempt."""

SENTIMENTS = {"positive", "negative"}


def grade(task: dict[str, str], transcript: list[dict[str, str]]) -> float:
    """Return 1 if the reply names the right sentiment and not the other one."""
    reply = (transcript[-1].get("content") or "").lower()
    return float({each for each in SENTIMENTS if each in reply} == {task["answer"]})
