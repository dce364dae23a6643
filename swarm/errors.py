"""The errors of the service, as one tree. Each class has a stable `code`, which HTTP responses contain.

SwarmError
├── BadRequest                  the caller must change the request
│   ├── UnknownParameter        a documented parameter that is not supported, or a value out of range
│   ├── ContextLengthExceeded   prompt plus completion do not fit the model
│   ├── JobInvalid              a TrainJob that cannot be run
│   └── EnvironmentInvalid      an environment or a program that cannot be used as it is
├── Unauthorized                no key, or a wrong one
├── Forbidden                   a token that is known but whose role may not do this
│   └── AttemptLimit            an episode has used up its limit of calls or tokens
├── NotFound                    no such episode, model or route
├── Conflict                    final: a retry of the same call will never succeed
│   ├── EpisodeEnded            the episode is over; `outcome` says how
│   ├── IdempotencyMismatch     the episode was ended before, with another payload
│   ├── IllegalTransition       the engine cannot do this in its present state
│   ├── TrainingComplete        the job has done its `total_steps`
│   ├── RevisionConflict        another caller has changed the job since its revision was read
│   ├── LaunchConflict          another run is under way, or the key was used for another job
│   ├── ServerLeased            another study uses the server
│   └── LeaseLost               the lease that a call was made under is over
├── Unavailable                 temporary: retry after `retry_after_s`
│   ├── EngineNotReady          offline or booting
│   ├── RolloutPaused           a batch is full or weights are changing
│   └── LedgerUnwritable        the disk fails and nothing was stored; also a LedgerError
├── EngineFailure               the engine or trainer failed; the server's state becomes FAILED
│   ├── WeightsNotFinite        the model gives no finite numbers
│   └── FailedEngine            the server's state is FAILED: waiting does not help
│       └── TrainingDiverged    it is, because trained weights give no finite numbers
├── EnvironmentFailure          a task could not be created or an attempt could not be graded
├── ProgramFailure              an agent, a reward or a schedule raised, or took too long
├── SandboxUnavailable          foreign code and no sandbox to run it in
├── CheckpointError             a checkpoint cannot be written or read
├── LedgerError                 the durable record cannot be opened, read or written
│   ├── LedgerInUse             another process uses it
│   ├── LedgerDamaged           missing, empty, older, damaged or of another directory
│   └── LedgerUnwritable        see above
└── ServerUnreachable           client side only: no answer from the server

Only the gateway maps a `code` to an HTTP status, and the client maps the code back to the same class.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import ClassVar


class SwarmError(Exception):
    """The base of all errors.

    `message` says in one line what is wrong and what to do. `param` is the name of the wrong parameter, if there is
    one.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(SwarmError):
    code = "bad_request"


class UnknownParameter(BadRequest):
    code = "unsupported_parameter"


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"


class JobInvalid(BadRequest):
    code = "job_invalid"


class EnvironmentInvalid(BadRequest):
    code = "environment_invalid"


class Unauthorized(SwarmError):
    code = "unauthorized"


class Forbidden(SwarmError):
    code = "forbidden"


class AttemptLimit(Forbidden):
    code = "attempt_limit"


class NotFound(SwarmError):
    code = "not_found"


class Conflict(SwarmError):
    code = "conflict"


class EpisodeEnded(Conflict):
    code = "episode_ended"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class IllegalTransition(Conflict):
    code = "illegal_transition"


class TrainingComplete(Conflict):
    code = "training_complete"


class RevisionConflict(Conflict):
    code = "revision_conflict"


class LaunchConflict(Conflict):
    code = "launch_conflict"


class ServerLeased(Conflict):
    code = "server_leased"


class LeaseLost(Conflict):
    code = "lease_lost"


class Unavailable(SwarmError):
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class EngineNotReady(Unavailable):
    code = "engine_not_ready"


class RolloutPaused(Unavailable):
    code = "rollout_paused"


class EngineFailure(SwarmError):
    code = "engine_failure"


class WeightsNotFinite(EngineFailure):
    """The model's scores of tokens are not finite numbers, so nothing can be sampled."""

    code = "weights_not_finite"


class FailedEngine(EngineFailure):
    """An engine that has failed, which serves nothing until somebody starts it again."""

    code = "engine_failed"


class TrainingDiverged(FailedEngine):
    """An engine that has failed because its trained weights give no finite numbers."""

    code = "training_diverged"


class EnvironmentFailure(SwarmError):
    code = "environment_failure"


class ProgramFailure(SwarmError):
    code = "program_failure"


class SandboxUnavailable(SwarmError):
    code = "sandbox_unavailable"


class CheckpointError(SwarmError):
    code = "checkpoint_error"


class LedgerError(SwarmError):
    code = "ledger_error"


class LedgerInUse(LedgerError):
    code = "ledger_in_use"


class LedgerDamaged(LedgerError):
    """A ledger that is missing, empty, older than it was, damaged, or that of another directory."""

    code = "ledger_damaged"

    def __init__(self, message: str, *, finding: str | None = None) -> None:
        super().__init__(message)
        self.finding = finding or message

    @classmethod
    def of(cls, path: Path, state: str, loss: str, others: str | None = None) -> LedgerDamaged:
        """Return an error about the ledger at `path`. It names the `state`, the `loss` and the ways to continue.

        `others` is a sentence about other ledgers in the folder.
        """
        home, finding = shlex.quote(str(path.parent)), f"{path} {state}; {loss}"
        finding += "" if others is None else f"; {others}"
        return cls(
            f"{finding}: put a backup back (swarm restore BACKUP --home {home}), or set the old files aside and begin"
            f" with a new ledger: swarm start --home {home} --new-ledger",
            finding=finding,
        )


class LedgerUnwritable(LedgerError, Unavailable):
    code = "ledger_unwritable"


class ServerUnreachable(SwarmError):
    code = "server_unreachable"


def error_class(code: str) -> type[SwarmError]:
    """Return the class with this `code`, or `SwarmError` for an unknown code, such as one of a newer server."""
    pending: list[type[SwarmError]] = [SwarmError]
    while pending:
        candidate = pending.pop()
        if candidate.code == code:
            return candidate
        pending.extend(candidate.__subclasses__())
    return SwarmError
