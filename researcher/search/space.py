"""The space of a search that names no factors: settings of the job that matter, and the program."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from experiments_db import number_as_text
from researcher.charter import Factor, Level
from researcher.programs import list_programs
from researcher.question.factors import PROGRAM, SPECS
from researcher.question.flags import make_factor
from swarm import TrainJob

PLAIN_PROGRAM = "plain"
"""The name of the program that an arm has if no other is written."""
RATES = (1, 3, 0.3, 10, 0.1)
"""The learning rates, as multiples of the job's."""
GROUPS = (2, 0.5)
"""The group sizes, as multiples of the job's."""
USUAL = ("mini_batch_num", "temperature", "algorithm", "use_kl_loss")
"""Further settings, with the job's value and the usual levels of each."""


def default_space(job: Mapping[str, Any], programs: Sequence[str], fixed: Collection[str] = ()) -> tuple[Factor, ...]:
    """Return the factors of a search that names none, without the settings that a person fixed.

    The first level of each factor is what the job has. `programs` are the names of the programs to choose from, that of
    the baseline first; a single one is no factor.
    """
    settings = tuple(
        make_factor(SPECS[name], values, explicit=False) for name, values in _values(job) if name not in fixed
    )
    if len(programs) < 2:
        return settings
    levels = tuple(Level(name, {PROGRAM: name}, {}) for name in dict.fromkeys(programs))
    return (*settings, Factor(PROGRAM, levels, explicit=False))


def programs_of(given: Collection[str], *, runs_own_agent: bool) -> tuple[str, ...]:
    """Return the names of the programs that a search chooses from, that of the baseline first.

    `given` are the programs of a person or of the environment; without any, the plain program comes first. If the
    environment runs an agent of its own, programs of the library with an agent are left out.
    """
    library = (program.name for program in list_programs() if not (program.has_agent and runs_own_agent))
    return tuple(dict.fromkeys((*(given or (PLAIN_PROGRAM,)), *library)))


def _values(job: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each setting with its values, that of the job first."""
    lr = job.get("lr") or TrainJob(model=job["model"]).resolve().lr
    assert lr is not None, "a resolved job has a learning rate"
    yield "lr", [float(number_as_text(times * lr)) for times in RATES]
    group = int(job["num_repeat"])
    yield "num_repeat", [group, *(size for times in GROUPS if (size := round(times * group)) > 1)]
    for name in USUAL:
        yield name, [job.get(name, TrainJob.model_fields[name].default), *SPECS[name].usual]
