"""The list of checks of `swarm doctor`, each with its time limit."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from swarm.doctor import installed, server
from swarm.doctor.examination import QUICK_S, Check, CheckFinding, warn

PROBE_S = installed.PROBE_LIMIT_S + 10.0
# Longer, because the check reads every row and every page of the file.
LEDGER_S = 30.0
# A user who names a home wants the whole ledger to be checked.
NAMED_LEDGER_S = 6 * 3600.0


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
        Check("python", installed.check_python),
        Check("server packages", partial(installed.check_packages, "server", is_optional=False)),
        Check("researcher packages", partial(installed.check_packages, "researcher", is_optional=True)),
        Check("ui packages", partial(installed.check_packages, "ui", is_optional=True)),
        Check("torch", partial(installed.check_tensors, probe), PROBE_S),
        Check("bundled model", partial(installed.check_bundled_model, probe), PROBE_S),
        Check("open files", installed.check_open_files),
        Check("home", partial(server.check_home, home)),
        Check("disk use", partial(server.check_disk_use, home)),
        Check("disk latency", partial(server.check_fsync, home)),
        Check("ledger", partial(server.check_ledger, home), ledger_s, _ledger_is_large(home)),
        Check("port", partial(server.check_port, *address)),
        Check("tokens", partial(server.check_tokens, host)),
        Check("clock", partial(server.check_clock, *address, home)),
        Check("verl trainer", partial(installed.check_packages, "verl", is_optional=True)),
        Check("verl sampler", partial(installed.check_sampler, vllm_python)),
        Check("ray cluster", partial(installed.check_ray, ray_address)),
        Check("shared memory", installed.check_shared_memory),
        Check("bubblewrap", installed.check_bubblewrap, 2 * QUICK_S),
    ]


def _ledger_is_large(directory: Path) -> CheckFinding:
    return warn(
        f"only partly read within {LEDGER_S:.0f} s: no damage found so far",
        f"run `swarm doctor --home {shlex.quote(str(directory))}`, which reads all of it",
    )
