"""The list of checks, in the order of the output, each with its time limit.

Place in the flow: the CLI passes it to `examine`. It knows nothing of how a check works.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from swarm.doctor import address, home, installed, verl
from swarm.doctor.examination import Check, CheckFinding, fail, warn

QUICK_S = 10.0
PROBE_S = installed.PROBE_LIMIT_S + 10.0
# Longer, because the check reads every row and every page of the file.
LEDGER_S = 30.0
# A user who names a home wants the whole ledger to be checked.
NAMED_LEDGER_S = 6 * 3600.0

_STUCK = fail("did not answer in time", "check the disk, the load of this machine, and its system log")


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """The server that `swarm start` would run with the same flags; `token` is for calls to a running one."""

    host: str
    port: int
    home: Path
    token: str | None
    ray_address: str | None = None
    vllm_python: Path | None = None
    is_home_named: bool = False


def checks_of(flags: ServerFlags) -> list[Check]:
    server = (flags.host, flags.port, flags.token)
    probe = installed.TensorProbe()
    ledger_s = NAMED_LEDGER_S if flags.is_home_named else LEDGER_S
    return [
        _quick("python", installed.check_python),
        _quick("server packages", installed.check_server_packages),
        _quick("researcher packages", partial(installed.check_optional_extra, "researcher")),
        _quick("ui packages", partial(installed.check_optional_extra, "ui")),
        Check("torch", partial(installed.check_tensors, probe), PROBE_S, _STUCK),
        Check("bundled model", partial(installed.check_bundled_model, probe), PROBE_S, _STUCK),
        _quick("open files", installed.check_open_files),
        _quick("home", partial(home.check_home, flags.home)),
        _quick("disk use", partial(home.check_disk_use, flags.home)),
        _quick("disk latency", partial(home.check_fsync, flags.home)),
        Check("ledger", partial(home.check_ledger, flags.home), ledger_s, _ledger_is_large(flags.home)),
        _quick("port", partial(address.check_port, *server)),
        _quick("tokens", partial(address.check_tokens, flags.host)),
        _quick("clock", partial(address.check_clock, *server, flags.home)),
        _quick("verl trainer", verl.check_trainer),
        _quick("verl sampler", partial(verl.check_sampler, flags.vllm_python)),
        _quick("ray cluster", partial(verl.check_ray, flags.ray_address)),
        _quick("shared memory", verl.check_shared_memory),
        Check("bubblewrap", installed.check_bubblewrap, 2 * QUICK_S, _STUCK),
    ]


def _quick(name: str, run: Callable[[], CheckFinding]) -> Check:
    return Check(name, run, QUICK_S, _STUCK)


def _ledger_is_large(directory: Path) -> CheckFinding:
    return warn(
        f"only partly read within {LEDGER_S:.0f} s: no damage found so far",
        f"run `swarm doctor --home {shlex.quote(str(directory))}`, which reads all of it",
    )
