"""Writes a line of 100 MB where its driver reads."""


def agent(task, model, session):
    session._session._host._out.write("x" * 100_000_000)
    session._session._host._out.flush()
