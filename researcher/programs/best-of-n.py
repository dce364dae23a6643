"""The model answers four times, and the answer that comes most often is the reply."""

from collections import Counter

from swarm.program import main

SAMPLES = 4


def agent(task, model, session):
    """Reply to every message with the most frequent answer; among equals the first one counts."""
    following = ()
    while following is not None:
        answers = [model.chat(session.transcript, tools=session.tools) for _ in range(SAMPLES)]
        counts = Counter(normalize(answer) for answer in answers)
        following = session.reply(max(answers, key=lambda answer: counts[normalize(answer)]))


def normalize(answer):
    """Return what two answers have in common that differ in spaces, capital letters or a full stop."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in answer.get("tool_calls") or ()]
    return " ".join((answer.get("content") or "").lower().split()).rstrip("."), tuple(calls)


if __name__ == "__main__":
    main(__file__)
