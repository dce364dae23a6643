"""The checks of a program and its job before its launch, without a real run.

They save runs and give a planner something to repair; the sandbox protects the host.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from researcher.errors import EnvironmentBroken, ResearchError, ServerProblem
from researcher.plan import ArmProgram, ProgramProblem
from researcher.program_code import ProgramCode
from researcher.question.needs import acting
from researcher.record.runs import PROJECT
from researcher.servers.server_pool import is_outage
from swarm import SwarmClient
from swarm.errors import JobInvalid, SandboxUnavailable, SwarmError
from swarm.job import TrainJob, build_job
from swarm.processes import python_module
from swarm.program import ENVIRONMENT_FAILED, NO_SANDBOX, is_program
from swarm.sandbox import Sandbox, SandboxedCommand, plain_command

_PROMISE = re.compile(r"(?<![\w.])([a-z_]+)=([^\s,]+?)(?=$|[\s,]|\+[a-z_])")
"""Matches a setting and its value in the name of an arm; a plus sign may join two of them."""


def check_job(job: Mapping[str, Any]) -> tuple[ProgramProblem, ...]:
    """Return the problems of an arm's job."""
    objections = [reason] if (reason := why_not_carried_out(job)) else []
    if job.get("eval_every") or job.get("eval_env") is not None:
        objections.append("eval_every, eval_env: the study's own evaluator scores its runs: leave both out")
    if job.get("guard", "warn") != "warn":
        objections.append("guard: a study ends a run that is lost itself, by the same rules: leave it out")
    try:
        if not objections:
            build_job(dict(job))
    except JobInvalid as error:
        objections.append(error.message)
    return tuple(ProgramProblem("job", message) for message in objections)


def why_not_carried_out(job: Mapping[str, Any]) -> str | None:
    """Return why no study can carry out a job that a server would accept; None if there is no reason."""
    if job.get("algorithm") == "gdpo":
        return "algorithm gdpo learns from rewards by name, and a program of a study gives one: choose another"
    return None


def contradict_name(name: str, job: Mapping[str, Any]) -> str | None:
    """Return how a name, as in "lr=0.01", contradicts the job; None if it does not."""
    whole = build_job(dict(job)).model_dump(mode="json")
    own = build_job(whole).resolve()
    for setting, value in _PROMISE.findall(name):
        if setting not in TrainJob.model_fields:
            continue
        try:
            # A whole job may have settings that nothing reads beside this one.
            promised = getattr(build_job({**whole, setting: value}).resolve(), setting)
        except JobInvalid:
            # The name uses a value that the setting cannot have, so it states nothing about the setting.
            continue
        if promised != getattr(own, setting):
            return f"its name says {setting}={value}, and its job has {setting} {getattr(own, setting)}"
    return None


STYLE = "style"
LINT_TIMEOUT_S = 30.0
PREFLIGHT_TIMEOUT_S = 90.0
MAX_CODE_CHARS = 40_000
LAST_LINES = 8
MAX_MESSAGE_CHARS = 1200

LINT_RULES = "E9,F5,F6,F7,F82"
"""Syntax, formats and comparisons, misplaced statements, undefined names."""
STYLE_RULES = frozenset({"F504", "F522", "F523", "F541", "F601", "F602", "F631", "F632", "F634", "F722", "F822"})
"""Those of them that break no program: it runs, and does what it says. They are warnings, and no reason to refuse it.
"""


def check_program(
    program: ArmProgram,
    job: Mapping[str, Any],
    *,
    workdir: Path,
    sandbox: Sandbox | None,
    preflight_url: str | None,
    environment: str,
    token: str | None = None,
) -> tuple[ProgramProblem, ...]:
    """Return all problems of the first stage that has any; empty if the program may run.

    `job` are the arm's settings. The program trains on `environment`. Code that a person wrote may import anything.

    The preflight stage runs the job at the smallest size on the fake engine of the server at `preflight_url`, with
    `token`. It works in a temporary folder below `workdir`, and nothing else may use the server meanwhile. Without
    `preflight_url` the stage is skipped.

    Raises ServerProblem if the server goes away, which says nothing about the program.
    """
    problems = check_parse(program.code)
    if problems:
        return problems
    foreign = () if program.trusted else _check_reaches(program.code)
    problems = (*_check_lint(program.code), *foreign, *check_job(job))
    problems = problems or _check_functions(program.code)
    if problems or preflight_url is None:
        return problems
    return _check_preflight(program, job, workdir, _Trial(sandbox, preflight_url, token, environment))


def check_parse(code: str) -> tuple[ProgramProblem, ...]:
    """Return the problem of a text that is no Python."""
    if len(code) > MAX_CODE_CHARS:
        return (
            ProgramProblem("parse", f"the program has {len(code)} characters, at most {MAX_CODE_CHARS} are accepted"),
        )
    if not code.strip():
        return (ProgramProblem("parse", "the program is empty"),)
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        # Null bytes are a ValueError up to Python 3.11.3.
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        return (ProgramProblem("parse", f"{line}{reason}"),)
    return ()


def _check_reaches(code: str) -> tuple[ProgramProblem, ...]:
    found = dict.fromkeys(f"line {each.line}: {each.what}" for each in ProgramCode(code).reaches() if each.is_refused)
    return tuple(ProgramProblem("imports", message) for message in found)


def _check_functions(code: str) -> tuple[ProgramProblem, ...]:
    """Return a problem for code without any function to call: a script would need the token of its server."""
    if is_program(code):
        return ()
    return (
        ProgramProblem("functions", "the file has none of the functions agent, reward and schedule at its top level"),
    )


def find_style_warnings(code: str) -> tuple[ProgramProblem, ...]:
    """Return what a linter finds in a program that can be run as it is."""
    return tuple(problem for problem in _lint(code) if problem.stage == STYLE)


def _check_lint(code: str) -> tuple[ProgramProblem, ...]:
    return tuple(problem for problem in _lint(code) if problem.stage != STYLE)


def _lint(code: str) -> tuple[ProgramProblem, ...]:
    """Return ruff's findings; none without ruff, since the compiler and the preflight remain."""
    try:
        from ruff.__main__ import find_ruff_bin
    except ImportError:
        return ()
    argv = ["check", "--isolated", "--no-cache", "--target-version", "py311"]
    argv += ["--select", LINT_RULES, "--output-format", "json", "--stdin-filename", "program.py", "-"]
    try:
        # Called by its path, because `python -m ruff` takes six times as long, most of it to start Python.
        argv.insert(0, find_ruff_bin())
        done = subprocess.run(argv, input=code, capture_output=True, text=True, timeout=LINT_TIMEOUT_S, check=False)
        findings = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as error:
        return (ProgramProblem("lint", f"the linter did not work: {type(error).__name__}: {error}"),)
    return tuple(
        ProgramProblem(
            STYLE if finding["code"] in STYLE_RULES else "lint",
            f"line {finding['location']['row']}: {finding['code']} {finding['message']}",
        )
        for finding in findings
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """The sandbox, server and environment of a preflight run."""

    sandbox: Sandbox | None
    url: str
    token: str | None
    environment: str


def _check_preflight(
    program: ArmProgram, job: Mapping[str, Any], workdir: Path, trial: _Trial
) -> tuple[ProgramProblem, ...]:
    tiny = build_job({**acting({**job, **_smallest(job)}), "project_name": PROJECT, "experiment_name": "preflight"})
    workdir.mkdir(parents=True, exist_ok=True)
    url = trial.url
    with (
        tempfile.TemporaryDirectory(prefix="check-", dir=workdir) as name,
        SwarmClient(url, token=trial.token) as server,
    ):
        # The program can write only in a folder below. It could replace a log there by a link to any file.
        folder = Path(name).resolve() / "work"
        folder.mkdir()
        (folder / "program.py").write_text(program.code, encoding="utf-8")
        tiny.dump_job_as_yaml(folder / "job.yaml")
        try:
            began = server.auto_sync_train_config_and_start_engine(tiny, force_restart=True)
            message = _run_program(folder, trial)
            server.stop_engine()
            is_restarted = server.status().started_at != began.started_at
        except SandboxUnavailable:
            raise
        except SwarmError as error:
            kind = ServerProblem if is_outage(error) else ResearchError
            raise kind(f"the preflight server at {url} does not work: {error}") from error
    if message and is_restarted:
        raise ServerProblem(f"the preflight server at {url} was started again meanwhile")
    return (ProgramProblem("preflight", message),) if message else ()


def _smallest(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that reduce a job to one step with one task of at most two episodes, without a model."""
    repeat = min(2, int(job.get("num_repeat", 2)))
    return {
        "engine": "fake", "batch_size": 1, "num_repeat": repeat, "min_group": None, "mini_batch_num": 1,
        "total_steps": 1, "seed": 0, "n_gpu": 0, "save_freq": 0, "lr_warmup_steps": 0,
    }  # fmt: skip


def _run_program(folder: Path, trial: _Trial) -> str:
    """Return the error with the last lines of output; empty if the job was done.

    The driving process is trusted and runs the program's functions in the sandbox. Raises EnvironmentBroken or
    SandboxUnavailable for failures that are not the program's fault.
    """
    arguments = ["program.py", "--server", trial.url, "--job", "job.yaml", "--seed", "0", "--env", trial.environment]
    sandboxed = [] if trial.sandbox is None else ["--sandbox"]
    argv = python_module("swarm.program", *arguments, *sandboxed)
    command = plain_command(argv, server_url=trial.url, token=trial.token)
    log = folder.parent / "output.log"
    try:
        code = _run_bounded(command, folder, log)
        if code == -signal.SIGKILL:
            # Another process may have killed it. A program that uses up the memory is killed again.
            code = _run_bounded(command, folder, log)
    finally:
        command.cleanup()
    if code == 0:
        return ""
    if code == ENVIRONMENT_FAILED:
        raise EnvironmentBroken(_last_words(log))
    if code == NO_SANDBOX:
        raise SandboxUnavailable(_last_words(log))
    what = f"did not end within {PREFLIGHT_TIMEOUT_S:g} s" if code is None else f"ended with exit code {code}"
    return f"the program {what}: {_last_words(log).replace(f'{folder}/', '')}"


def _run_bounded(command: SandboxedCommand, folder: Path, log: Path) -> int | None:
    """Return the exit code; None if the whole process group was killed at the time limit."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.argv, cwd=folder, env=command.env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(PREFLIGHT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def _last_words(log: Path) -> str:
    size = log.stat().st_size
    with log.open("rb") as file:
        file.seek(max(0, size - 16_384))
        text = file.read().decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t~^")][-LAST_LINES:]
    if not lines:
        return "it printed nothing"
    # The last line of a traceback has the error, the lines before it the place.
    return " | ".join([lines[-1], *lines[:-1]])[:MAX_MESSAGE_CHARS]
