"""Replies with a line of 100 MB."""


def agent(task, model, session):
    session.reply("x" * 100_000_000)
