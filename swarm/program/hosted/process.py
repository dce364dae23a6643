"""A program in processes of its own: it has the same functions, and each call goes over a pipe."""

from __future__ import annotations

import itertools
import logging
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from swarm.client.transient_errors import is_transient
from swarm.digest import digest_of
from swarm.environments.base import Grade, Transcript
from swarm.errors import EnvironmentInvalid, ProgramFailure, SandboxUnavailable, Unavailable, error_class
from swarm.processes.child import KILLED, OWN_END_S, Child, python_module, tail
from swarm.program.attempts import Model, ModelKey, RecordedSession
from swarm.program.base import Program, answer_in_turn
from swarm.program.hosted.key_router import BASE_PATH, KeyRouter
from swarm.program.hosted.protocol import CallLine, FailureLine, FollowingLine, FromProgram, ReadyLine
from swarm.program.roles import ONE_ROLE
from swarm.sandbox.sandbox import Sandbox, plain_command
from swarm.types import Message, Task

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
ATTEMPT_LIMIT_S = 900.0
"""The default limit of one call of an agent, which may make many model calls on a slow engine."""
FUNCTION_LIMIT_S = 30.0
"""The limit of a reward or a schedule, which only compute."""
MAX_USELESS_STARTS = 3
REFUSED_PAUSE_S = 1.0
MAX_HUNG = 8
"""After this number of attempts over the time limit in one score, the other attempts are not run."""
MAX_LINE_CHARS = 16 * 2**20
MAX_STRAY_LINES = 1000
"""The limit of lines in a row that are not of the protocol. They cost the driver time, and so many are no accident."""
MAX_WAITING_LINES = 64
"""The limit of unread replies of one call. An agent waits after each reply, so each of its threads can have one."""
MAX_UNSENT_LINES = 4096
"""The limit of lines that wait for a program to read them."""
MAX_TRACE_CHARS = 4_000
PROGRAM_FILE = "program.py"

Parsed = TypeVar("Parsed", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """The place in which a program runs.

    `path` is its file; its folder is the working directory. In a sandbox it can reach nothing but `server_url`. Its
    output goes to the file `log`. Without a `sandbox` it is an ordinary process.
    """

    path: Path
    server_url: str
    log: Path
    sandbox: Sandbox | None = None


@contextmanager
def place_program(code: str, folder: Path, server_url: str, sandbox: Sandbox | None) -> Generator[ProgramPlace]:
    """Put the program into a fresh working directory, which is removed after the `with` block.

    The directory looks the same in training and in evaluation. A foreign program can write there, so its files are
    never opened again. Its log is `folder`/program.log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as name:
        # The sandbox changes the owner of the innermost folder, but not of the one above.
        path = Path(name).resolve() / "work" / PROGRAM_FILE
        path.parent.mkdir()
        path.write_text(code, encoding="utf-8")
        yield ProgramPlace(path, server_url, folder.resolve() / "program.log", sandbox)


class ProgramProcess:
    """The processes of a program, for many threads at once.

    Close it, or use it in a `with` block, which gives the `Program`.
    """

    def __init__(
        self,
        place: ProgramPlace,
        *,
        shaping: ProgramPlace | None = None,
        attempt_limit_s: float = ATTEMPT_LIMIT_S,
        max_hung: int | None = None,
        router: KeyRouter | None = None,
    ) -> None:
        """Start the processes of a program: the agent at `place`, reward and schedule at `shaping`.

        Without `shaping` the program has no reward and no schedule. With several roles, the server of `place` is the
        `router`, which forwards to their servers. After `max_hung` attempts that took longer than `attempt_limit_s`,
        the process is ended and all other attempts fail at once.

        Raises EnvironmentInvalid for a file that is no program, and ProgramFailure if its process does not start.
        Raises SandboxUnavailable if the sandbox or the system is the cause.
        """
        self._place = place
        self._router = router
        self._attempt_limit_s = attempt_limit_s
        self._max_hung = max_hung
        self._hung = 0
        self._numbers = itertools.count()
        self._agents = _Lives(place)
        try:
            self._shapers = None if shaping is None else _Lives(shaping)
        except BaseException:
            self._agents.close()
            raise

    def __enter__(self) -> Program:
        agents = self._agents.functions
        shapers = frozenset[str]() if self._shapers is None else self._shapers.functions
        return Program(
            self._place.path.stem,
            self._agent if "agent" in agents else answer_in_turn,
            self._reward if "reward" in shapers else None,
            self._schedule if "schedule" in shapers else None,
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the supervisor of the agent's process. It changes with each start."""
        return self._agents.pid

    def close(self) -> None:
        self._agents.close()
        if self._shapers is not None:
            self._shapers.close()

    def _agent(self, task: Task, model: Model, session: RecordedSession) -> Message | str | None:
        if self._max_hung is not None and self._hung >= self._max_hung:
            raise ProgramFailure(
                f"{self._place.path.name}: {self._hung} attempts of this score took longer than "
                f"{self._attempt_limit_s:g} s, so this one was not waited for"
            )
        models = {role: model.role(role) for role in model.roles} or {ONE_ROLE: model}
        path = urlsplit(model.base_url).path.removeprefix(urlsplit(self._place.server_url).path.rstrip("/"))
        place = path if self._router is None else BASE_PATH
        given = {role: ModelKey(place, each.api_key, each.name, each.max_tokens) for role, each in models.items()}
        call = CallLine(
            id=next(self._numbers), function="agent", task=_shown(task), keys=given,
            messages=[dict(message) for message in session.messages], tools=[dict(tool) for tool in session.tools],
        )  # fmt: skip
        keys = {each.api_key: each.base_url for each in models.values()}
        with nullcontext() if self._router is None else self._router.routed(keys):
            return self._run(self._agents, call, self._attempt_limit_s, session)

    def _reward(self, task: Task, transcript: Transcript, grade: Grade) -> float | Mapping[str, float]:
        call = CallLine(
            id=next(self._numbers), function="reward", task=_shown(task), grade=grade,
            messages=[dict(message) for message in transcript],
        )  # fmt: skip
        # base.py checks this value, as it checks every reward.
        return self._run(self._shapers, call, FUNCTION_LIMIT_S, None)

    def _schedule(self, tasks: Sequence[Task], progress: float) -> list[Task]:
        shown = [_shown(task) for task in tasks]
        by_id = {each.task_id: task for each, task in zip(shown, tasks, strict=True)}
        call = CallLine(id=next(self._numbers), function="schedule", tasks=shown, progress=progress)
        chosen: Any = self._run(self._shapers, call, FUNCTION_LIMIT_S, None)
        names = cast(list[str], chosen) if isinstance(chosen, list) else []
        return [by_id[name] for name in names if name in by_id]

    def _run(self, lives: _Lives | None, call: CallLine, limit_s: float, session: RecordedSession | None) -> Any:
        assert lives is not None, "a program has no function without a process"
        life = lives.living()
        lines = life.begin(call)
        deadline = time.monotonic() + limit_s
        try:
            while True:
                received = lines.get(timeout=max(0.0, deadline - time.monotonic()))
                if received is None:
                    raise Unavailable(f"the process of {self._place.path.name} ended in mid-call: {life.last_words()}")
                if received.reply is None or session is None:
                    return _returned(received)
                life.say(_following(call.id, received.reply, session, life))
        except Empty:
            self._hung += 1
            if self._max_hung is None or self._hung >= self._max_hung:
                # Only the end of the process ends a thread of the program. Its other calls are repeated.
                life.offence = f"another call took longer than {limit_s:g} s"
                life.end()
            raise ProgramFailure(
                f"{self._place.path.name}: {call.function} took longer than {limit_s:g} s"
                f"{f' on task {call.task.task_id}' if call.task else ''}"
            ) from None
        finally:
            life.forget(call.id)


class _Lives:
    """The successive processes at one place, of which one lives at a time."""

    def __init__(self, place: ProgramPlace) -> None:
        """Start the first process. Raises EnvironmentInvalid, ProgramFailure or SandboxUnavailable."""
        self._place = place
        self._lock = threading.Lock()
        self._is_closed = False
        self._useless_starts = 0
        self._life = self._start()

    @property
    def functions(self) -> frozenset[str]:
        return self._life.functions

    @property
    def pid(self) -> int:
        return self._life.child.pid

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._life.end()

    def living(self) -> _Life:
        """Return the process that takes calls now. A dead one is replaced first."""
        with self._lock:
            if self._is_closed:
                raise Unavailable("the program has been closed")
            if self._life.is_over.is_set():
                self._life.end()
                logger.warning("the process of %s has ended and is restarted", self._place.path.name)
                self._useless_starts = 0 if self._life.has_answered else self._useless_starts + 1
                if self._useless_starts >= MAX_USELESS_STARTS:
                    raise ProgramFailure(
                        f"{self._place.path.name}: its process always ends before it has answered one call: "
                        f"{self._life.last_words()}"
                    )
                self._life = self._start()
            return self._life

    def _start(self) -> _Life:
        """Start a process. Raises ProgramFailure, EnvironmentInvalid or SandboxUnavailable.

        If the process is killed as it starts, or the system cannot start it, the start is repeated. The program is not
        at fault then.
        """
        for _ in range(MAX_USELESS_STARTS - 1):
            try:
                return _Life(self._place)
            except _Killed:
                logger.warning("the process of %s was killed as it started and is restarted", self._place.path.name)
            except _Refused as refusal:
                logger.warning("%s; the start is repeated", refusal.message)
                time.sleep(REFUSED_PAUSE_S)
        return _Life(self._place)


class _Killed(ProgramFailure):
    """The process was killed before it was ready."""


class _Refused(SandboxUnavailable):
    """The system cannot start a process now; the program is not at fault."""


@dataclass(slots=True)
class _Life:
    """One process of a program, from its start to its end."""

    place: ProgramPlace
    child: Child = field(init=False)
    functions: frozenset[str] = frozenset()
    has_answered: bool = False
    functions_are_known: bool = False
    offence: str | None = None
    """The reason why its driver ends it, if the program has broken the protocol."""
    is_over: threading.Event = field(default_factory=threading.Event)
    _unsent: SimpleQueue[tuple[int, bytes] | None] = field(default_factory=lambda: SimpleQueue())
    """Lines to write, each with the id of its call. One thread writes them, so that a program that does not read delays
    no other thread."""
    _calls: dict[int, SimpleQueue[FromProgram | None]] = field(
        default_factory=dict[int, "SimpleQueue[FromProgram | None]"]
    )
    _ready: SimpleQueue[ReadyLine | None] = field(default_factory=lambda: SimpleQueue())

    def __post_init__(self) -> None:
        place = self.place
        self.child = _started(place)
        for target in (self._read, self._write):
            threading.Thread(target=target, name=f"program {place.path.name}", daemon=True).start()
        try:
            ready = self._ready.get(timeout=START_TIMEOUT_S)
        except Empty:
            ready = None
        if ready is None:
            was_killed = self.child.wait(OWN_END_S) == KILLED
            self.end()
            if place.sandbox is not None:
                place.sandbox.check()
            failure = _Killed if was_killed else ProgramFailure
            raise failure(f"the process of {place.path.name} did not start: {self.last_words()}")
        if ready.refusal is not None:
            self.end()
            raise EnvironmentInvalid(ready.refusal, param="program")
        self.functions = frozenset(ready.functions)

    def begin(self, call: CallLine) -> SimpleQueue[FromProgram | None]:
        lines: SimpleQueue[FromProgram | None] = SimpleQueue()
        self._calls[call.id] = lines
        self.say(call)
        if self.is_over.is_set():
            lines.put(None)
        return lines

    def forget(self, call_id: int) -> None:
        self._calls.pop(call_id, None)

    def say(self, line: CallLine | FollowingLine) -> None:
        """Queue a line for the writing thread. A line to a dead process is lost."""
        if self._unsent.qsize() >= MAX_UNSENT_LINES:
            self.offence = f"it did not read {MAX_UNSENT_LINES} lines that it was sent"
            self.end()
        self._unsent.put((line.id, line.model_dump_json().encode() + b"\n"))

    def end(self) -> None:
        self.is_over.set()
        self._unsent.put(None)
        self.child.stop()

    def last_words(self) -> str:
        if self.offence is not None:
            return self.offence
        lines = tail(self.place.log).splitlines()
        return lines[-1] if lines else "it wrote no message"

    def _write(self) -> None:
        while (unsent := self._unsent.get()) is not None:
            call_id, line = unsent
            try:
                self.child.write(line)
            except OSError:
                self.is_over.set()
                if (call := self._calls.get(call_id)) is not None:
                    call.put(None)

    def _read(self) -> None:
        strays = 0
        for line in self.child.lines(MAX_LINE_CHARS):
            understood = self._take(line)
            strays = 0 if understood else strays + 1
            if not understood and not line.endswith(b"\n") and len(line) >= MAX_LINE_CHARS:
                self.offence = f"it wrote a line of more than {MAX_LINE_CHARS >> 20} MiB"
            elif strays > MAX_STRAY_LINES:
                self.offence = f"it wrote more than {MAX_STRAY_LINES} lines that are no part of the protocol"
            if self.offence is not None:
                break
        self.is_over.set()
        self._unsent.put(None)
        self._ready.put(None)
        for call in list(self._calls.values()):
            call.put(None)
        if self.offence is not None:
            self.child.stop()

    def _take(self, line: bytes) -> bool:
        """Pass a line on to the call that waits for it. Return False if it is no line of the protocol."""
        if not self.functions_are_known:
            if (ready := _parse(line, ReadyLine)) is None:
                return False
            self.functions_are_known = True
            self._ready.put(ready)
            return True
        received = _parse(line, FromProgram)
        call = None if received is None else self._calls.get(received.id)
        if received is None or call is None:
            return False
        self.has_answered = True
        if call.qsize() >= MAX_WAITING_LINES:
            self.offence = f"it wrote {MAX_WAITING_LINES} replies to one turn"
        else:
            call.put(received)
        return True


def _started(place: ProgramPlace) -> Child:
    """Start the process of a program. Raises _Refused if the system has no process, memory or file for it."""
    argv = python_module("swarm.program.hosted", str(place.path), "--server", place.server_url)
    folder = place.path.parent
    try:
        if place.sandbox is None:
            command = plain_command(argv, server_url=place.server_url)
        else:
            command = place.sandbox.command(argv, workdir=folder, server_url=place.server_url)
        try:
            return Child(command.argv, env=command.env, cwd=folder, out=None, errors=place.log, on_stop=command.cleanup)
        except BaseException:
            command.cleanup()
            raise
    except OSError as error:
        raise _Refused(f"the process of {place.path.name} cannot be started: {error.strerror or error}") from error


def _parse(line: bytes, kind: type[Parsed]) -> Parsed | None:
    """Return the parsed line, or None if it is no line of the protocol, because a program can write any text."""
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


def _returned(received: FromProgram) -> Any:
    """Return the result of a call. Raises Unavailable for a transient failure, else ProgramFailure.

    A note of the ProgramFailure has the lines of the program that led to it. No other error is raised, because a
    program may send any code, and some codes would end or delay its driver's run.
    """
    if received.failure is None:
        return received.result
    error = error_class(received.failure.code)(received.failure.message)
    if is_transient(error):
        raise Unavailable(error.message)
    failure = ProgramFailure(error.message)
    if received.failure.trace:
        failure.add_note(received.failure.trace[-MAX_TRACE_CHARS:])
    raise failure


def _following(call_id: int, reply: Message, session: RecordedSession, life: _Life) -> FollowingLine:
    """Pass an agent's answer to the session and return the line with the messages that follow.

    An error of the environment is raised here, in the driver. So the attempt fails, also if the agent catches it.
    """
    if session.is_over:
        failure = FailureLine(
            code="bad_request", message="this attempt is over: an agent replies until reply() is None"
        )
        return FollowingLine(id=call_id, failure=failure)
    try:
        following = session.reply(reply)
    except Exception:
        life.say(
            FollowingLine(id=call_id, failure=FailureLine(code="environment_failure", message="the attempt has failed"))
        )
        raise
    return FollowingLine(id=call_id, messages=None if following is None else [dict(each) for each in following])


def _shown(task: Task) -> Task:
    """Return the task in the form that the program sees, which does not show the split, not even by its id.

    A program that knows when it is evaluated could behave differently then.
    """
    metadata = {name: value for name, value in task.metadata.items() if name != "split"}
    return replace(task, task_id=digest_of(task.task_id), metadata=metadata)
