"""Breaks off each attempt that begins badly, so that it is made again."""

from swarm.errors import Unavailable


def agent(task, model, session):
    if session.reply("1") is not None:
        raise Unavailable("the model did not answer")
