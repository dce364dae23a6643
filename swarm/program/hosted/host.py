"""The process that runs a program's functions: `python -m swarm.program.hosted PROGRAM --server URL`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from swarm.client.connections import ConnectionStack
from swarm.client.transient_errors import is_transient
from swarm.environments.base import Session
from swarm.errors import BadRequest, ProgramFailure, SwarmError, Unavailable, error_class
from swarm.processes.child import claim_stdout
from swarm.program.attempts import RecordedSession, model_of
from swarm.program.base import Program, answer_in_turn, load_program
from swarm.program.hosted.protocol import CallLine, FailureLine, FollowingLine, FromProgram, Line, ReadyLine
from swarm.tasks.agent import open_http
from swarm.types import Message

MAX_FRAMES = 10
"""The last calls of a program's own functions that the trace of a failure has."""


class HostedSession(Session):
    """The messages of an attempt whose driver answers for the environment."""

    def __init__(self, call: CallLine, host: Host) -> None:
        self.messages = tuple(call.messages)
        self._id = call.id
        self._host = host

    def reply(self, message: Message) -> tuple[Message, ...] | None:
        answered = self._host.ask(FromProgram(id=self._id, reply=dict(message)))
        if answered.failure is not None:
            raise error_class(answered.failure.code)(answered.failure.message)
        return None if answered.messages is None else tuple(answered.messages)


class Host:
    """The calls of one program, each in a thread."""

    def __init__(self, program: Program, path: Path, server: str, out: TextIO) -> None:
        self._program = program
        self._path = path
        self._server = server.rstrip("/")
        self._out = out
        self._lock = threading.Lock()
        self._following: dict[int, SimpleQueue[FollowingLine]] = {}
        self._http = open_http(ConnectionStack())

    def serve(self, lines: TextIO) -> None:
        """Serve calls until the driver closes its end."""
        for line in lines:
            document = json.loads(line)
            if "function" in document:
                call = CallLine.model_validate(document)
                self._following[call.id] = SimpleQueue()
                threading.Thread(target=self._run, args=(call,), name=f"call-{call.id}", daemon=True).start()
            else:
                following = FollowingLine.model_validate(document)
                # A thread of an agent may have replied after the agent returned, and nobody waits for it.
                if (waiting := self._following.get(following.id)) is not None:
                    waiting.put(following)

    def say(self, line: Line) -> None:
        with self._lock:
            self._out.write(line.model_dump_json() + "\n")
            self._out.flush()

    def ask(self, reply: FromProgram) -> FollowingLine:
        self.say(reply)
        return self._following[reply.id].get()

    def _run(self, call: CallLine) -> None:
        try:
            answer = FromProgram(id=call.id, result=self._result(call))
            answer.model_dump_json()
        except BaseException as error:  # noqa: BLE001 - the boundary: an error of the program is an answer
            answer = FromProgram(id=call.id, failure=self._failure(error))
        self.say(answer)
        del self._following[call.id]

    def _result(self, call: CallLine) -> Any:
        program = self._program
        if call.function == "agent":
            assert call.task is not None
            keys = {role: replace(key, base_url=self._server + key.base_url) for role, key in call.keys.items()}
            model = model_of(keys, self._http)
            session = RecordedSession(HostedSession(call, self), call.tools, math.inf)
            return program.agent(call.task, model, session)
        if call.function == "reward":
            assert call.task is not None and call.grade is not None and program.reward is not None
            reward = program.reward(call.task, call.messages, call.grade)
            # The driver checks the names of the roles.
            if isinstance(reward, Mapping):
                return {role: float(value) for role, value in reward.items()}
            return float(reward)
        assert program.schedule is not None
        return [task.task_id for task in program.schedule(call.tasks, call.progress)]

    def _failure(self, error: BaseException) -> FailureLine:
        """Return the failure that the driver raises for this error. A transient error stays transient."""
        if isinstance(error, SwarmError) and not isinstance(error, BadRequest):
            return FailureLine(code=error.code, message=error.message)
        message = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, Exception) and is_transient(error):
            return FailureLine(code=Unavailable.code, message=message)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(self._path)]
        where = f", line {frames[-1].lineno}" if frames else ""
        return FailureLine(
            code=ProgramFailure.code,
            message=f"{self._path.name}{where}: {message}",
            trace="".join(traceback.format_list(frames)[-MAX_FRAMES:]).replace(f"{self._path.parent}/", ""),
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--server", required=True)
    options = parser.parse_args(argv)
    out = claim_stdout()
    try:
        program = load_program(options.program)
    except SwarmError as error:
        out.write(ReadyLine(refusal=error.message).model_dump_json() + "\n")
        out.flush()
        return
    host = Host(program, options.program, options.server, out)
    agent = None if program.agent is answer_in_turn else program.agent
    functions = {"agent": agent, "reward": program.reward, "schedule": program.schedule}
    host.say(ReadyLine(functions=[name for name, function in functions.items() if function is not None]))
    host.serve(sys.stdin)
    # Agents may still be in an attempt, but the driver does not wait for it any more.
    os._exit(0)
