"""The script that runs tasks and rollouts of the library verifiers; the interpreter with the library has no swarm."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.metadata
import json
import os
import sys
import threading
import traceback
from itertools import count, islice
from pathlib import Path
from typing import IO, Any

NEEDED = ("AgentConfig", "EvalClientConfig", "ModelContext", "Sampling", "env_config_type", "load_environment")
"""Names that identify the supported API, because other versions of the library have a v1 with other names."""
PLAIN_HARNESS = "null"
"""A harness that passes on messages and tool calls. The library's own default runs the model's shell commands."""
PLAIN_RUNTIME = "subprocess"
LABELS = frozenset({"idx", "id", "name", "description"})
"""Fields that identify a task and are not part of its question."""
POLICYS_OWN_FAULT = frozenset({400, 403, 413, 422})
"""Statuses of failed model calls that the policy causes, for example by too long a context or by more calls than an
attempt may make."""
END_S = 10.0
"""Seconds in which rollouts must clean up once standard input has ended."""


class RolloutRefused(Exception):
    """A request that is answered with an error.

    `kind` is library, unknown, options or failed, and `status` is that of a failed model call.
    """

    def __init__(self, kind: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


class _NumberedTasks:
    """The tasks of one taskset by number, made as far as requested."""

    def __init__(self, taskset: Any) -> None:
        self._coming = iter(taskset)
        self._made: list[Any] = []

    def upto(self, end: int) -> list[Any]:
        self._made.extend(islice(self._coming, max(0, end - len(self._made))))
        return self._made


class Rollouts:
    """One environment of the library, with its tasks and its rollouts."""

    def __init__(self, vf: Any, taskset_id: str, config: Any, seat: str, rollout_seconds: float) -> None:
        self.environment = vf.load_environment(config)
        self._vf = vf
        self._id = taskset_id
        self._config = config
        self._seat = seat
        self._rollout_seconds = rollout_seconds
        self._sources: dict[str | None, _NumberedTasks] = {}
        self._keys = count()

    def describe(self) -> dict[str, Any]:
        taskset = self.environment.taskset
        harness = self._config.agent_harnesses()[self._seat].id
        modules = {self._vf.import_taskset(self._id), self._vf.import_harness(harness)}
        versions = {"verifiers": importlib.metadata.version("verifiers"), "python": sys.version.split()[0]}
        return {
            "versions": versions,
            "sources": sorted(digest for module in modules for digest in digests_of(module)),
            "split_values": split_values(type(taskset.config)),
            "is_endless": not taskset.bounded,
            "description": (type(taskset).__doc__ or "").strip().partition("\n")[0],
        }

    async def tasks(self, source: str | None, start: int, size: int) -> dict[str, Any]:
        # Not in another thread: tasksets seed random generators that rollouts use too.
        made = self._source(source).upto(start + size)[start:]
        return {"tasks": [shown(task) for task in made], "is_last": len(made) < size}

    async def run(
        self, source: str | None, number: int, key: str, base_url: str, api_key: str, model: str, max_tokens: int
    ) -> dict[str, Any]:
        made = self._source(source).upto(number + 1)
        if number >= len(made) or shown(made[number])["key"] != key:
            raise RolloutRefused(
                "failed", f"task {number} of the taskset has changed: it must always give the same tasks"
            )
        # The library reads keys from environment variables alone, and hides those with such names from agents.
        variable = f"ROLLOUT_{next(self._keys)}_API_KEY"
        os.environ[variable] = api_key
        context = self._vf.ModelContext(
            model=model,
            client=self._vf.EvalClientConfig(base_url=base_url, api_key_var=variable),
            sampling=self._vf.Sampling(max_tokens=max_tokens),
        )
        try:
            async with asyncio.timeout(self._rollout_seconds):
                episode = await self.environment.run_episode(made[number], context)
        except TimeoutError:
            raise RolloutRefused("failed", f"the rollout took longer than {self._rollout_seconds:g} s") from None
        finally:
            del os.environ[variable]
        return outcome(episode, self._seat)

    def _source(self, name: str | None) -> _NumberedTasks:
        if name not in self._sources:
            config: Any = self._config.taskset
            if name is not None:
                config = self._vf.taskset_config_type(self._id).model_validate({**config.model_dump(), "split": name})
            self._sources[name] = _NumberedTasks(self._vf.load_taskset(config))
        return self._sources[name]


def shown(task: Any) -> dict[str, Any]:
    """Return the description of a task, where `key` is unique and tasks that ask the same share their `content`."""
    data = task.data.model_dump(mode="json", exclude_none=True)
    prompt = task.data.prompt_text or data.get("description") or data.get("name") or ""
    content = {name: value for name, value in data.items() if name not in LABELS}
    del data["idx"]
    return {"key": digest(data), "content": digest(content), "prompt": prompt}


def outcome(episode: Any, seat: str) -> dict[str, Any]:
    """Return the reward of a rollout.

    Raises RolloutRefused for a rollout that failed, because a failure is not a reward.
    """
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        last = errors[-1] if errors else None
        result = (
            "the rollout failed and gave no reason"
            if last is None
            else f"{last.type}: {' '.join(last.message.split())[:400]}"
        )
        raise RolloutRefused("failed", result, None if last is None else last.status_code)
    played = [trace for trace in episode.traces if trace.agent.name == seat]
    if len(played) != 1:
        raise RolloutRefused(
            "failed", f"the agent {seat} ran {len(played)} times: an episode must be one attempt of one agent"
        )
    [trace] = played
    # An agent may end normally after a model call that the server could not answer.
    error = trace.calls[-1].error if trace.calls else None
    if error is not None and error.status_code not in POLICYS_OWN_FAULT:
        raise RolloutRefused("failed", f"the last model call failed: {error.message[:400]}", error.status_code)
    if trace.num_turns == 0:
        raise RolloutRefused("failed", "the agent got no answer from the model")
    if not trace.rewards:
        raise RolloutRefused("failed", "the task gave no reward")
    return {
        "reward": trace.reward,
        "rewards": {name: None if reward is None else reward.value for name, reward in trace.rewards.items()},
        "metrics": dict(trace.metrics),
        "transcript": [as_sent(message) for message in trace.messages],
    }


def as_sent(message: Any) -> dict[str, Any]:
    """Return a message in the form of chat completions."""
    sent: dict[str, Any] = {"content": None, **message.model_dump(mode="json", exclude_none=True)}
    sent.pop("provider_state", None)
    if calls := sent.get("tool_calls"):
        sent["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return sent


def open_environment(
    id: str, settings: dict[str, Any], harness: str | None, runtime: str | None, rollout_seconds: float
) -> Rollouts:
    """Open the environment of a taskset.

    Raises RolloutRefused for one that cannot be opened.
    """
    vf = import_library()
    find_taskset(vf, id)
    from pydantic import ValidationError

    try:
        config, seat = configure(vf, id, settings, harness, runtime)
        return Rollouts(vf, id, config, seat, rollout_seconds)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RolloutRefused("options", f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ModuleNotFoundError as error:
        raise RolloutRefused("options", str(error)) from error


def import_library() -> Any:
    try:
        found = importlib.import_module("verifiers")
    except ModuleNotFoundError as error:
        if error.name != "verifiers":
            raise
        raise RolloutRefused("library", f"{sys.executable} has no verifiers: install verifiers>=0.4 there") from None
    version = getattr(found, "__version__", "?")
    try:
        vf = importlib.import_module("verifiers.v1")
    except ModuleNotFoundError as error:
        if error.name != "verifiers.v1":
            raise
        vf = None
    if not all(hasattr(vf, name) for name in NEEDED):
        raise RolloutRefused(
            "library", f"verifiers {version} in {sys.executable} has another API: install verifiers>=0.4"
        )
    return vf


def find_taskset(vf: Any, taskset_id: str) -> None:
    try:
        vf.import_taskset(taskset_id)
        vf.taskset_config_type(taskset_id)
    except ModuleNotFoundError as error:
        # The library raises the same error for a missing package and for one whose dependency is missing.
        missing = getattr(error.__cause__, "name", None)
        if missing and missing != taskset_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower():
            raise RolloutRefused("library", f"the package {taskset_id} needs {missing}: install it") from error
        raise RolloutRefused(
            "unknown", f"no package {taskset_id!r} is installed in {sys.executable}: install it"
        ) from error
    except (TypeError, AttributeError, ValueError) as error:
        raise RolloutRefused("unknown", f"{taskset_id!r} is not a taskset of verifiers: {error}") from error
    except ImportError as error:
        raise RolloutRefused("library", f"the package {taskset_id} cannot be imported: {error}") from error


def configure(
    vf: Any, taskset_id: str, settings: dict[str, Any], harness: str | None, runtime: str | None
) -> tuple[Any, str]:
    """Return the configuration of the environment, and the name of the agent that the served model plays."""
    raw = {**settings, "taskset": {**settings.get("taskset", {}), "id": taskset_id}}
    kind = vf.env_config_type(taskset_id, raw.get("id", ""))
    seats = {
        name: field.default for name, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)
    }
    bundled = vf.default_harness_id(taskset_id)
    for name, default in seats.items():
        seat = dict(raw.get(name, {}))
        if harness is not None or (default.harness is None and bundled == "bash"):
            seat["harness"] = {"id": harness or PLAIN_HARNESS, **seat.get("harness", {})}
        if runtime is not None or "runtime" not in default.model_fields_set:
            seat["runtime"] = {"type": runtime or PLAIN_RUNTIME, **seat.get("runtime", {})}
        raw[name] = seat
    config = vf.resolve_env_config(raw)
    own = [name for name in seats if getattr(config, name).client is None]
    if len(own) != 1:
        raise RolloutRefused(
            "options",
            f"the served model would play {len(own)} of the agents {', '.join(seats)}, but it must play one: give each "
            "other one its own model (env.NAME.client.base_url, env.NAME.client.api_key_var and env.NAME.model)",
        )
    return config, own[0]


def split_values(kind: Any) -> list[str]:
    """Return the values of the taskset's own option `split`.

    The list is empty if there is no such option, or if it takes any value.
    """
    field = kind.model_fields.get("split")
    values = getattr(None if field is None else field.annotation, "__args__", ())
    return [value for value in values if isinstance(value, str)]


def digests_of(module: Any) -> list[str]:
    """Return the digest of each file of the module's package, which may be editable and change without a version."""
    folders = [Path(folder) for folder in getattr(module, "__path__", [])]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()] or [Path(module.__file__)]
    return [
        f"{path.name}:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in files
        if "__pycache__" not in path.parts
    ]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


async def serve(inbox: asyncio.Queue[dict[str, Any] | None], answers: IO[str]) -> None:
    """Answer requests until None arrives.

    The first request is to open the environment. Requests and answers are lines of JSON:

        {"number": 0, "method": "open", "parameters": {...}}
        {"number": 0, "result": {...}}                           or
        {"number": 0, "error": {"kind": "...", "message": "...", "status": 503}}
    """
    first = await inbox.get()
    if first is None:
        return
    try:
        rollouts = open_environment(**first["parameters"])
        opened = rollouts.describe()
    except Exception as error:  # noqa: BLE001 - the boundary: any error of a package is sent to the caller
        send(answers, first["number"], error)
        return
    async with rollouts.environment.serving():
        # Each rollout then starts its own proxy between agent and model, which ends with it. A shared proxy would keep
        # an HTTP client for every key that it has seen, and every episode has its own key.
        rollouts.environment._interception = None
        send(answers, first["number"], opened)
        running: set[asyncio.Task[None]] = set()
        while (request := await inbox.get()) is not None:
            task = asyncio.create_task(answer(rollouts, request, answers))
            running.add(task)
            task.add_done_callback(running.discard)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def answer(rollouts: Rollouts, request: dict[str, Any], answers: IO[str]) -> None:
    methods = {"tasks": rollouts.tasks, "run": rollouts.run}
    try:
        result: dict[str, Any] | Exception = await methods[request["method"]](**request["parameters"])
    except Exception as error:  # noqa: BLE001 - the same boundary
        result = error
    send(answers, request["number"], result)


def send(answers: IO[str], number: int, result: dict[str, Any] | Exception) -> None:
    if isinstance(result, RolloutRefused):
        message: dict[str, Any] = {"error": {"kind": result.kind, "message": str(result), "status": result.status}}
    elif isinstance(result, Exception):
        traceback.print_exception(result)
        message = {"error": {"kind": "failed", "message": f"{type(result).__name__}: {result}", "status": None}}
    else:
        message = {"result": result}
    answers.write(json.dumps({"number": number, **message}) + "\n")
    answers.flush()


def take_channels() -> tuple[IO[str], IO[str]]:
    """Return standard input and output, for requests and answers alone.

    Agents inherit neither: they read from /dev/null and print to standard error.
    """
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, answers


async def main() -> None:
    requests, answers = take_channels()
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def read() -> None:
        for line in requests:
            loop.call_soon_threadsafe(inbox.put_nowait, json.loads(line))
        # Code of tasks may block the event loop, which then does not see the end.
        last = threading.Timer(END_S, os._exit, [1])
        last.daemon = True
        last.start()
        loop.call_soon_threadsafe(inbox.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    await serve(inbox, answers)


if __name__ == "__main__":
    # Otherwise modules beside this file could hide packages of the same name.
    own = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != own]
    asyncio.run(main())
