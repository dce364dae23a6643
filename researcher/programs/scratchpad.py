"""The model thinks in a call of its own first; only the answer that follows is the reply."""

from swarm.program import main

THINK = "Think about this step by step. Do not answer yet."
ANSWER = "Now answer, with the answer alone."


def agent(task, model, session):
    """Reply to every message after thinking about it; tools can be called in place of an answer."""
    following = ()
    while following is not None:
        asked = instruct(session.transcript, THINK)
        thoughts = model.chat(asked).get("content") or ""
        prompt = [*asked, {"role": "assistant", "content": thoughts}, {"role": "user", "content": ANSWER}]
        following = session.reply(model.chat(prompt, tools=session.tools))


def instruct(messages, text):
    """Return the messages with an instruction at their end, in the last message if that is one of the user."""
    *earlier, last = messages
    if last["role"] == "user" and isinstance(last["content"], str):
        return [*earlier, {**last, "content": f"{last['content']}\n{text}"}]
    return [*messages, {"role": "user", "content": text}]


if __name__ == "__main__":
    main(__file__)
