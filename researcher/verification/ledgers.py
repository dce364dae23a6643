"""The checks of costs, rewards and authorship against the ledgers of a study's own servers.

A score is found in a ledger by the sampling seeds of its attempts, which follow from its own seed and the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from experiments_db import Author, DetailedEvaluation, Run
from researcher.evaluation.authorship import MOST_TASKS, Authorship, count_authorship, read_answers
from researcher.evaluation.shown_request import compare_requests
from researcher.execution.environments import StudyEnvironments
from researcher.phases import AUTHORSHIP, COST, FINAL, LEDGER, REQUESTS
from researcher.record.costs import cost_of_attempts, cost_to_json, is_of_program
from researcher.record.ledgers import StoredLedger, read_ledgers
from researcher.verification.result import RecordCheck, differences
from swarm.environments import Environment, EnvironmentTask, Grade
from swarm.errors import SwarmError
from swarm.program import EndedAttempt, attempt_seed
from swarm.schemas import EpisodeDetail, EpisodeView
from swarm.tasks import Split
from swarm.types import EpisodeType

if TYPE_CHECKING:
    from researcher.verification.record import StudyRecord

UNKNOWN_ANSWERS = (
    "narrowed, by_code, choices and missed are compared with each other alone, and unwritten, and told in sessions of "
    "several turns, have an upper bound alone: no ledger keeps the answers that a program gave"
)
AT_MOST = (("by_code", "solved"), ("narrowed", "attempts"), ("missed", "choices"), ("choices", "attempts"))
"""Pairs of counts, of which the first is part of the second."""
NOT_KEPT = "its ledger is not kept below this home: cannot be recomputed"
Attempts = Mapping[tuple[str | None, int | None], EpisodeView]
"""The scored attempts of all ledgers, by task and sampling seed. Of repeated ones the last counts."""


def check_ledgers(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that the ledgers are sound, and that costs, rewards and authorship follow from them."""
    paths = sorted(record.files.folder.glob(f"servers/*/{LEDGER}"))
    is_foreign = any(item.author is Author.LANGUAGE_MODEL for item in record.experiments.values())
    ledgers = read_ledgers(paths, has_turns=is_foreign)
    check = RecordCheck("ledgers", len(ledgers))
    check.mismatches += [each.damage for each in ledgers if each.damage]
    if not ledgers:
        check.notes.append("no ledger of an own server lies below this home")
    yield check
    attempts = {
        (episode.task_id, episode.sampling_seed): episode
        for ledger in ledgers
        for episode in ledger.episodes
        if episode.episode_type is EpisodeType.EVAL and episode.reward is not None
    }
    costs = _check_training_costs(record, ledgers, attempts)
    if costs.checked or costs.not_kept:
        yield costs
    yield from _check_scores(record, attempts)
    if is_foreign:
        details = {name: detail for ledger in ledgers for name, detail in ledger.details.items()}
        yield _check_authorship(record, attempts, details)


def _check_training_costs(record: StudyRecord, ledgers: list[StoredLedger], attempts: Attempts) -> RecordCheck:
    check = RecordCheck("costs of training", 0)
    for run in record.runs.values():
        if run.training_cost is None:
            continue
        if (episodes := _train_episodes(run, ledgers)) is None:
            check.leave_out(NOT_KEPT)
            continue
        check.checked += 1
        # Attempts that were still open when the run ended may end later, and did not count.
        final = record.store.find_evaluation(run.id, FINAL, record.charter.search_split)
        until = min((each.begun_at for each in _attempts_of(final, attempts)), default=None) if final else None
        counted = [each for each in episodes if until is None or each.ended_at is None or each.ended_at <= until]
        unrewarded = (each.outcome or each.state for each in counted if each.reward is None)
        found = cost_of_attempts(
            counted,
            broken=sum(map(is_of_program, unrewarded)),
            repeated=sum(each.usage.system_failures > 0 for each in counted),
        )
        given = dict(run.training_cost)
        computed = None if found is None else cost_to_json(found)
        check.mismatches += differences(given, computed, f"{run.id}: cost of training")
    return check


def _train_episodes(run: Run, ledgers: list[StoredLedger]) -> list[EpisodeView] | None:
    name = run.job.get("experiment_name")
    for ledger in ledgers:
        jobs = [number for number, job in ledger.jobs.items() if job == name]
        if jobs:
            return [
                each for each in ledger.episodes if each.job_id == max(jobs) and each.episode_type is EpisodeType.TRAIN
            ]
    return None


def _check_scores(record: StudyRecord, attempts: Attempts) -> Iterator[RecordCheck]:
    """Check the reward of each attempt of a score and the cost of all, as far as its ledger is kept."""
    rewards, costs = RecordCheck("rewards in ledgers", 0), RecordCheck("costs of scores", 0)
    for item in record.evaluations:
        found = _attempts_of(item, attempts)
        where = f"{item.run_id}: {item.phase} score"
        if not found:
            for check in (rewards, costs):
                check.leave_out(NOT_KEPT)
            continue
        rewards.checked += len(found)
        rewards.mismatches += _compare_rewards(item, attempts, where)
        costs.checked += 1
        computed = cost_of_attempts(found, broken=item.details["broken"], repeated=item.details["repeated"])
        costs.mismatches += differences(item.details.get(COST), computed and cost_to_json(computed), f"{where}: cost")
    yield rewards
    yield costs


def _keys_of(item: DetailedEvaluation) -> list[tuple[str, int]]:
    """Return task and sampling seed of each attempt of a score, in the order of its rewards."""
    numbers, keys = Counter[str](), list[tuple[str, int]]()
    for task in item.details.get("tasks", ()):
        keys.append((task, attempt_seed(item.details.get("sampling_seed", -1), task, numbers[task])))
        numbers[task] += 1
    return keys


def _attempts_of(item: DetailedEvaluation, attempts: Attempts) -> list[EpisodeView]:
    return [attempts[key] for key in _keys_of(item) if key in attempts]


def _compare_rewards(item: DetailedEvaluation, attempts: Attempts, where: str) -> Iterator[str]:
    keys = _keys_of(item)
    lost = [task for task, seed in keys if (task, seed) not in attempts]
    if len(lost) > item.details["broken"]:
        yield f"{where}: {len(lost)} of its attempts are in no ledger, and its program broke {item.details['broken']}"
    for key, reward, solved in zip(keys, item.details["rewards"], item.details["solved"], strict=True):
        if (found := attempts.get(key)) is not None:
            yield from differences(reward, found.reward, f"{where}: reward of {key[0]}")
            yield from differences(solved, bool(found.is_success), f"{where}: {key[0]} is solved")


def _check_authorship(record: StudyRecord, attempts: Attempts, details: Mapping[str, EpisodeDetail]) -> RecordCheck:
    """Count again who did the work, as far as it does not depend on the answers that programs gave in the end."""
    check = RecordCheck("authorship", 0, notes=[UNKNOWN_ANSWERS])
    scores = [item for item in record.evaluations if AUTHORSHIP in item.details]
    with closing(StudyEnvironments()) as environments:
        try:
            environment = environments.open(record.charter.environment)
        except SwarmError as error:
            check.leave_out(f"{record.charter.environment} cannot be opened: {error.message}", len(scores))
            return check
        for item in scores:
            ended = [each.ended_at or 0.0 for each in _attempts_of(item, attempts)]
            check.mismatches += _compare_problem(record, item, max(ended, default=0.0))
            seen = [(each, details[each.episode_id]) for each in _attempts_of(item, attempts)]
            if not seen or any(len(detail.turns) < each.turns for each, detail in seen):
                check.leave_out("the tokens of its attempts are not kept: cannot be recomputed")
                continue
            check.checked += 1
            check.mismatches += _compare_authorship(record, item, environment, [detail for _, detail in seen])
    return check


def _compare_problem(record: StudyRecord, item: DetailedEvaluation, ended_at: float) -> Iterator[str]:
    """Find again what is wrong with a score by its counts and those of the arm's scores before it.

    Another score that was stored after the last attempt of this one may have come too late to be counted in.
    """
    arm = record.arm_of(item.run_id)
    others = [
        other
        for other in record.evaluations
        if other.phase == FINAL and AUTHORSHIP in other.details and record.arm_of(other.run_id) == arm
        if other.created_at <= item.created_at and other.run_id != item.run_id
    ]
    others.sort(key=lambda other: other.created_at)
    counts = [Authorship.from_json(other.details[AUTHORSHIP]) for other in others]
    least = sum(other.created_at <= ended_at for other in others)
    own = Authorship.from_json(item.details[AUTHORSHIP])
    possible = [sum(counts[:number], own).find_problem() for number in range(least, len(counts) + 1)]
    given = item.details[AUTHORSHIP].get("problem")
    if given not in possible:
        yield from differences(given, possible[-1], f"{item.run_id}: authorship: problem")


def _compare_authorship(
    record: StudyRecord, item: DetailedEvaluation, environment: Environment, details: list[EpisodeDetail]
) -> Iterator[str]:
    split = Split(item.split)
    tasks = record.charter.tasks_of(item.split, explores=bool(record.runs[item.run_id].rung))
    answers = read_answers(environment, split, skip=tasks.start)
    known = {each.task.task_id: each for each in islice(environment.tasks(split), tasks.start, tasks.stop)}
    read = [detail for detail in details if detail.episode.task_id in answers or not answers]
    pairs = [(_begun(environment, known[str(each.episode.task_id)], each), each) for each in read[:MOST_TASKS]]
    found = asdict(count_authorship(pairs, answers))
    given = item.details[AUTHORSHIP]
    where = f"{item.run_id}: authorship"
    # What a longer session says later depends on the agent's answers, so its counts have an upper bound alone.
    bounded = {"unwritten"} if environment.max_turns == 1 else {"unwritten", "told"}
    for name in ("attempts", "solved", "told", "unwritten", "limits"):
        stored = max(given[name], found[name]) if name in bounded else given[name]
        yield from differences(stored, found[name], f"{where}: {name}")
    for part, whole in AT_MOST:
        if given[part] > given[whole]:
            yield f"{where}: {part} is {given[part]}, of {whole} {given[whole]}"
    if bool(given["told"]) != bool(given["readings"]):
        yield f"{where}: told is {given['told']}, by the readings {given['readings']}"
    if shown := item.details.get(REQUESTS):
        asked = compare_requests(pairs, environment.tools)
        for name in ("unchanged", "requests"):
            yield from differences(shown.get(name), asked.get(name), f"{item.run_id}: requests: {name}")


def _begun(environment: Environment, task: EnvironmentTask, detail: EpisodeDetail) -> EndedAttempt:
    """Return an attempt with the messages that its task begins with, and its grade."""
    episode = detail.episode
    grade = Grade(episode.reward or 0.0, bool(episode.is_success))
    return EndedAttempt(task.task, episode.episode_id, tuple(environment.open(task).messages), grade)
