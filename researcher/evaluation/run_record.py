"""A check of the record that a server has of a run: whether the run was honest while its program trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from researcher.errors import RunRejected
from swarm import SwarmClient
from swarm.program import RUN_MARK
from swarm.schemas import EpisodeView, EventView

MAX_EPISODES = 100_000
MAX_READ_EPISODES = 256
"""The most train episodes of a run whose messages are read, spread evenly over the run.

A program that trains on held-out questions does so throughout, so a sample is enough.
"""
LOADED = "loaded by command"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The tasks that no train episode may use: their ids, and their questions."""

    task_ids: frozenset[str]
    questions: frozenset[str]


@dataclass(frozen=True, slots=True)
class RunMark:
    """The start of a run's record: the event of its job's start, and that event's time in seconds since the epoch."""

    event_id: int
    at: float


def mark_begin(client: SwarmClient, job: Mapping[str, Any]) -> RunMark:
    """Return the mark of a run whose job has been started. Raises RunRejected if the server has no record of it."""
    name = job.get("experiment_name")
    started = [
        event
        for event in client.past_events()
        if event.kind == "job.started" and event.detail.get("experiment_name") == name
    ]
    if not started:
        raise RunRejected(f"the server has no record of the start of {name}")
    return RunMark(started[-1].event_id, started[-1].at)


def check_record(
    client: SwarmClient, mark: RunMark, held_out: HeldOut, run: str, *, ended_at: int | None = None
) -> None:
    """Raise RunRejected, naming the reason, unless the record is that of an honest run.

    All train episodes must belong to `run`. `ended_at` is the step with which the study itself ended the job, if it
    did.
    """
    events = client.past_events(mark.event_id - 1)
    if not events or events[0].event_id != mark.event_id:
        raise RunRejected(f"the server has no record of the event {mark.event_id}, at which the run began")
    offences = [offence for event in events[1:] if (offence := _offence_of(event, ended_at))]
    if offences:
        raise RunRejected(f"while the run trained, {offences[0]}: its score would not be the arm's")
    episodes = _episodes_of(client, events[0])
    clients = sorted({episode.client_id for episode in episodes})
    strangers = [name for name in clients if name.rpartition(RUN_MARK)[0] != run]
    if strangers:
        raise RunRejected(f"train episodes came from another client, {strangers[0]}: the weights are not of this arm")
    named = next((episode for episode in episodes if episode.task_id in held_out.task_ids), None)
    if named is not None:
        raise RunRejected(f"the held-out task {named.task_id} is among the train episodes")
    for episode in _spread(episodes):
        if (question := _asked(client, episode, held_out.questions)) is not None:
            raise RunRejected(
                f"train episode {episode.episode_id} asks a held-out question: {' '.join(question.split())[:80]!r}"
            )


def _episodes_of(client: SwarmClient, started: EventView) -> list[EpisodeView]:
    """Return the train episodes of the job that this event started, and those whose job is unknown.

    The job id is compared and not the time, because a clock may have been set back.
    """
    listed = client.episodes(limit=MAX_EPISODES, episode_type="train")
    return [episode for episode in listed if episode.job_id in (started.detail.get("job_id"), None)]


def _offence_of(event: EventView, ended_at: int | None) -> str | None:
    """Return how a command from outside changed the run; None for an event of the run itself."""
    detail = event.detail
    match event.kind:
        case "job.changed" if ended_at is not None and _is_end(detail.get("settings"), ended_at):
            return None
        case "policy.changed" | "job.changed":
            return "the settings of the job were changed"
        case "job.started":
            return f"the job {detail.get('experiment_name')} was started"
        case "job.extended":
            return "the job was given another number of steps"
        case "weights.rewound" if detail.get("reason") == LOADED:
            return f"the weights of step {detail.get('step')} were loaded"
        case "engine.state" if detail.get("state") == "OFFLINE" and detail.get("reason") is None:
            return "the engine was stopped"
        case _:
            return None


def _is_end(settings: object, ended_at: int) -> bool:
    """Return whether the settings are those with which the study ended the job, or would have ended it.

    A server that was away meanwhile may resume at an earlier step, and then gets the command again.
    """
    match settings:
        case {"total_steps": int(steps), **others}:
            return not others and steps >= ended_at
        case _:
            return False


def _spread(episodes: Sequence[EpisodeView]) -> Iterator[EpisodeView]:
    every = max(1, len(episodes) // MAX_READ_EPISODES)
    yield from episodes[::every]


def _asked(client: SwarmClient, episode: EpisodeView, questions: frozenset[str]) -> str | None:
    """Return a held-out question that the model got as a message, or as whole lines of one; None if there is none."""
    if not episode.turns:
        return None
    for turn in client.episode(episode.episode_id).turns:
        for message in turn.messages:
            text = _text_of(message)
            found = next((question for question in questions if f"\n{question}\n" in f"\n{text}\n"), None)
            if found is not None:
                return found
    return None


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts: list[Any] = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    lines = "\n".join(text for text in texts if isinstance(text, str)).splitlines()
    return "\n".join(line.strip() for line in lines)


def held_out_of(questions: Mapping[str, str]) -> HeldOut:
    """Return the held-out tasks from their questions by task id."""
    plain = (_text_of({"content": question}) for question in questions.values())
    return HeldOut(frozenset(questions), frozenset(question for question in plain if question))
