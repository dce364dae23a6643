"""The model answers, is asked to check its answer, and answers again."""

from swarm.program import main

CHECK = "Check this answer. Then answer again, in the same form: the answer alone."


def agent(task, model, session):
    """Reply to every message with the checked answer; a call of a tool needs no check."""
    following = ()
    while following is not None:
        answer = model.chat(session.transcript, tools=session.tools)
        if answer.get("content") and not answer.get("tool_calls"):
            answer = check(model, session, answer)
        following = session.reply(answer)


def check(model, session, answer):
    """Return the second answer, or the first one where the second is empty."""
    asked = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": CHECK}]
    checked = model.chat([*session.transcript, *asked], tools=session.tools)
    return checked if checked.get("content") or checked.get("tool_calls") else answer


if __name__ == "__main__":
    main(__file__)
