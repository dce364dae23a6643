"""The page of every setting of a job and of a server, from the descriptions in the code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from swarm.config import ServerConfig
from swarm.job import TRAITS, TrainJob, Traits

TEXT = """\
# Configuration

## A job

What a client syncs: `TrainJob` in Python, `{{"job": ...}}` over HTTP, a `job.yaml` of the same names. A setting that is
not listed here is refused by name. `GET /v1/swarm/job` shows a job as it was given and with every default filled in.

Most settings can [change while the job runs](http-api.md#change-the-job-that-runs), on every engine or on all but verl.
Column "live" says when a change can hold at the earliest: from the next *step*, for what is read when a batch is
trained or after that; or from the next *batch*, for what is read from the first episode of a batch on and never changes
within one.

Column "needs" says what a setting needs to have an effect. A job that gives the setting without it is refused, and so
is a change of a running job.

{job}
### What cannot change while a job runs

| setting | why, and what to do |
|---|---|
{fixed}
## A server

`host` and `port` are flags of `swarm start`. Each other setting can be an environment variable: its name in capitals
behind `SWARM_`, as in `SWARM_MAX_WAIT_S=30`. `sampler_pythons` has one for each sampler, as in `SWARM_VLLM_PYTHON`.
`SWARM_HOME` is the directory above the server's. `SWARM_PEERS` and `SWARM_EVAL_ENVS` are separated by commas.
Directory, peers and environments (`--home`, `--peer`, `--eval-env`) are flags as well; a flag wins over a variable.

{server}"""

BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


def page() -> str:
    fixed = "".join(f"| `{name}` | {traits.fixed} |\n" for name, traits in TRAITS.items() if traits.fixed)
    live = {name: _live(traits) for name, traits in TRAITS.items()}
    needs = {name: _needs(traits) for name, traits in TRAITS.items()}
    job = _table(TrainJob, {"live": live, "needs": needs})
    return TEXT.format(job=job, fixed=fixed, server=_table(ServerConfig, {}))


def _table(model: type[BaseModel], more: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of all settings. `more` are further columns, by their heads and by the names of settings."""

    def row(name: str, field: Mapping[str, Any]) -> str:
        cells = [f"`{name}`", _values(field), _default(field), *(column[name] for column in more.values())]
        return f"| {' | '.join([*cells, ' '.join(field['description'].split())])} |\n"

    names = ["setting", "values", "default", *more]
    head = f"| {' | '.join(names)} | |\n|{'---|' * (len(names) + 1)}\n"
    return head + "".join(row(name, field) for name, field in model.model_json_schema()["properties"].items())


def _live(traits: Traits) -> str:
    """Return the note on when a change of the setting in a running job takes effect."""
    if traits.reader is None:
        return ""
    return traits.reader.value if traits.on_verl else f"{traits.reader.value}, not on verl"


def _needs(traits: Traits) -> str:
    """Return what the setting needs to have an effect: other settings, with the values that meet the need if few do."""
    return "; ".join(f"`{need.setting}`{_values_of_need(need.values)}" for need in traits.needs)


def _values_of_need(values: Sequence[Any]) -> str:
    if isinstance(values, range):
        return f" {values.start} or more"
    return "".join(f" {'or ' * bool(number)}`{each}`" for number, each in enumerate(values))


def _values(field: Mapping[str, Any]) -> str:
    """Return the possible values of a setting, without null, which stands for the default."""
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    return " or ".join(_kind(kind) for kind in kinds)


def _kind(kind: Mapping[str, Any]) -> str:
    if "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind["enum"])
    limits = [text.format(kind[name]) for name, text in BOUNDS.items() if name in kind]
    names = {"array": "list", "object": "mapping", "boolean": "`true`, `false`"}
    return " ".join([names.get(kind["type"], kind["type"]), ", ".join(limits)]).strip()


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return "" if value in (None, [], {}) else f"`{value if isinstance(value, str) else json.dumps(value)}`"
