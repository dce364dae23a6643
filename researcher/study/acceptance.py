"""A person's decision that an arm stays in, although its code does a part of the model's work."""

from __future__ import annotations

from collections.abc import Sequence

from experiments_db import ExperimentStore, Study
from researcher.errors import TopicInvalid
from researcher.study.ending import is_over

ACCEPTED = "arm.accepted"


def accept_arms(store: ExperimentStore, study: Study, arms: Sequence[str]) -> None:
    """Record the decision, with an event. Raises TopicInvalid for an unknown arm, and for a study that is over."""
    known = [item.name for item in store.list_experiments(study.id)]
    for arm in arms:
        if arm not in known:
            raise TopicInvalid(f"--accept {arm}: the study has no such arm; its arms are {', '.join(known) or 'none'}")
    if arms and is_over(store, study):
        raise TopicInvalid(
            f"study {study.id} is {study.status}, and its verdicts were given without {', '.join(arms)}: start another "
            "study with --accept"
        )
    accepted: Sequence[str] = study.settings.get("accept", ())
    added = [arm for arm in dict.fromkeys(arms) if arm not in accepted]
    if added:
        store.revise_settings(study.id, {**study.settings, "accept": [*accepted, *added]})
    for arm in added:
        store.append_event(study.id, ACCEPTED, f"A person accepts {arm}, whatever its code does.", payload={"arm": arm})
