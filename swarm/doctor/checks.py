"""The list of checks of `swarm doctor`, each with its time limit."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from swarm.doctor import installed, server
from swarm.doctor.examination import Check, CheckFinding, fail, warn

QUICK_S = 10.0
PROBE_S = installed.PROBE_LIMIT_S + 10.0
# Longer, because the check reads every row and every page of the file.
LEDGER_S = 30.0
# A user who names a home wants the whole ledger to be checked.
NAMED_LEDGER_S = 6 * 3600.0

_STUCK = fail("did not answer in time", "check the disk, the load of this machine, and its system log")


def checks_of(
    host: str,
    port: int,
    home: Path,
    token: str | None,
    *,
    ray_address: str | None,
    vllm_python: Path | None,
    is_home_named: bool,
) -> list[Check]:
    """Return the checks of the server that `swarm start` would run with these flags, in the order of the output."""
    address = (host, port, token)
    probe = installed.TensorProbe()
    ledger_s = NAMED_LEDGER_S if is_home_named else LEDGER_S
    return [
        _quick("python", installed.check_python),
        _quick("server packages", partial(installed.check_packages, "server", is_optional=False)),
        _quick("researcher packages", partial(installed.check_packages, "researcher", is_optional=True)),
        _quick("ui packages", partial(installed.check_packages, "ui", is_optional=True)),
        Check("torch", partial(installed.check_tensors, probe), PROBE_S, _STUCK),
        Check("bundled model", partial(installed.check_bundled_model, probe), PROBE_S, _STUCK),
        _quick("open files", installed.check_open_files),
        _quick("home", partial(server.check_home, home)),
        _quick("disk use", partial(server.check_disk_use, home)),
        _quick("disk latency", partial(server.check_fsync, home)),
        Check("ledger", partial(server.check_ledger, home), ledger_s, _ledger_is_large(home)),
        _quick("port", partial(server.check_port, *address)),
        _quick("tokens", partial(server.check_tokens, host)),
        _quick("clock", partial(server.check_clock, *address, home)),
        _quick("verl trainer", partial(installed.check_packages, "verl", is_optional=True)),
        _quick("verl sampler", partial(installed.check_sampler, vllm_python)),
        _quick("ray cluster", partial(installed.check_ray, ray_address)),
        _quick("shared memory", installed.check_shared_memory),
        Check("bubblewrap", installed.check_bubblewrap, 2 * QUICK_S, _STUCK),
    ]


def _quick(name: str, run: Callable[[], CheckFinding]) -> Check:
    return Check(name, run, QUICK_S, _STUCK)


def _ledger_is_large(directory: Path) -> CheckFinding:
    return warn(
        f"only partly read within {LEDGER_S:.0f} s: no damage found so far",
        f"run `swarm doctor --home {shlex.quote(str(directory))}`, which reads all of it",
    )
