"""Frame: the topic becomes a charter, frozen before anything runs."""

from __future__ import annotations

from dataclasses import replace

from researcher.charter import Charter, FrameRequest, JudgedBy
from researcher.errors import TopicInvalid
from researcher.execution.environments import count_tasks
from researcher.judge.equality_size import MOST_EPISODES, choose_episodes
from researcher.loop.deps import Deps, ResearchState
from researcher.memory.recall import recall_about
from researcher.memory.subject import subject_of_request
from researcher.planner.designs import lay_out
from researcher.question.wording import describe_question
from researcher.record.log import to_json
from researcher.search.rules import LEAST_EPISODES
from researcher.study.settings import MAX_OF_ATTEMPT
from swarm.environments import DrivenEnvironment, Environment, is_bundled

PILOT_OF_EQUALITY, MOST_SEEDS_OF_EQUALITY = 6, 24
"""The runs of the pilot, and the most runs per arm, of a question for equality.

Its number of runs rests on the measured variance alone, which three runs do not show."""
CALLS_OF_A_REPLY = 8
"""The model calls that an agent may make for each reply where nobody has set a limit: twice those of a vote of four."""
SPREAD_OF_EFFECT = 0.5
"""The factor from an effect on scores to one on their spread: runs of one arm differ less than arms do."""


def frame(deps: Deps, state: ResearchState, request: FrameRequest) -> ResearchState:
    if deps.store.find_charter(deps.study_id) is None:
        subject = subject_of_request(request)
        if subject is not None:
            request = replace(request, earlier_findings=recall_about(deps.store, deps.study_id, subject))
        charter = _on_environment(deps, deps.planner.frame(request), request)
        deps.store.freeze_charter(deps.study_id, to_json(charter))
        deps.log.note("charter.frozen", "; ".join(line.strip() for line in describe_question(charter)))
        for assumption in charter.assumptions:
            deps.log.note("charter.assumption", assumption)
    return state


def _on_environment(deps: Deps, charter: Charter, request: FrameRequest) -> Charter:
    """Return the charter with its environment, and with at most as many tasks per score as there are."""
    reference = charter.environment_name if request.environment is None else request.environment.reference
    environment = deps.environments.open(reference)
    charter = in_units_of_metric(
        replace(
            charter,
            environment=reference,
            environment_digest=environment.digest,
            # A grader that a person wrote may give any number; those of the bundled environments give 0 to 1.
            metric_range=(0.0, 1.0) if is_bundled(reference) else charter.metric_range,
        )
    )
    # A repeated study measures as the first one did.
    if not deps.store.get_study(deps.study_id).settings.get("replicates"):
        charter = _with_limits(charter, environment)
    if charter.margin is not None:
        charter = _for_equality(charter, request)
    return _within_split(charter, count_tasks(environment, charter.search_split, charter.held_out))


def _with_limits(charter: Charter, environment: Environment) -> Charter:
    """Return the charter with limits of an attempt, where arms may have agents of their own and nobody set any.

    A limit that is set stands. An environment with an agent of its own needs none.
    """
    is_limited = charter.attempt_calls is not None and charter.attempt_tokens is not None
    if is_limited or not charter.asks.scope.asks_agents or isinstance(environment, DrivenEnvironment):
        return charter
    calls = charter.attempt_calls or min(MAX_OF_ATTEMPT, CALLS_OF_A_REPLY * environment.max_turns)
    tokens = charter.attempt_tokens or min(MAX_OF_ATTEMPT, calls * environment.max_tokens)
    sentence = (
        f"An attempt of any arm may make {calls} model calls and sample {tokens} tokens in all, in training and in "
        "scores: agents are compared at equal limits."
    )
    return replace(charter, attempt_calls=calls, attempt_tokens=tokens, assumptions=(*charter.assumptions, sentence))


def _for_equality(charter: Charter, request: FrameRequest) -> Charter:
    """Return the charter with its margin, a pilot that measures a small variance, and enough episodes for the margin.

    The number of episodes that a person chose stands. Where the range of scores or the noise of the judged number is
    unknown, nothing says how many episodes are enough.
    """
    goal = charter.sample_size
    if goal is None:
        return charter
    arms = max(2, len(lay_out(charter.asks, charter.job)))
    most, runs = MOST_SEEDS_OF_EQUALITY, charter.budget.max_runs
    if runs is not None:
        most = min(most, max(runs // arms, charter.rule.min_seeds))
    goal = replace(goal, pilot_seeds=min(PILOT_OF_EQUALITY, most), max_seeds=MOST_SEEDS_OF_EQUALITY)
    charter = replace(charter, sample_size=goal, asks=replace(charter.asks, margin=charter.margin))
    is_known = charter.metric_range is not None and charter.judged_by is JudgedBy.FINAL
    episodes = min(choose_episodes(charter, arms - 1, goal.seeds or max(most, PILOT_OF_EQUALITY)), MOST_EPISODES)
    if request.eval_episodes is not None or not is_known or episodes <= charter.eval_episodes:
        return charter
    sentence = (
        f"A score takes {episodes} episodes in place of {charter.eval_episodes}, so that evaluation noise leaves room "
        f"for a margin of {charter.margin:g}."
    )
    return replace(charter, eval_episodes=episodes, assumptions=(*charter.assumptions, sentence))


def _within_split(charter: Charter, held_out: int) -> Charter:
    """Return the charter with as many episodes per score as the search split has tasks for.

    Raises TopicInvalid if a search has too few tasks for scores of exploring and of claiming runs.
    """
    if held_out >= charter.held_out:
        return charter
    split, rules = charter.search_split, charter.search
    if rules is None:
        sentence = f"The {split} split has {held_out} tasks: a score is over all of them."
        return replace(charter, eval_episodes=held_out, assumptions=(*charter.assumptions, sentence))
    if held_out < 2 * LEAST_EPISODES:
        raise TopicInvalid(
            f"{charter.environment_name} has {held_out} {split} tasks, and a search needs {2 * LEAST_EPISODES}: one "
            "half to explore with, the other to confirm what it finds: add tasks, or compare given arms with --vary"
        )
    explored = round(held_out * rules.episodes / charter.held_out)
    explored = min(max(explored, LEAST_EPISODES), held_out - LEAST_EPISODES)
    sentence = (
        f"The {split} split has {held_out} tasks: {explored} are for exploring, and a score that a claim rests on is "
        f"over the other {held_out - explored}."
    )
    return replace(
        charter,
        eval_episodes=held_out - explored,
        search=replace(rules, episodes=explored),
        assumptions=(*charter.assumptions, sentence),
    )


def in_units_of_metric(charter: Charter) -> Charter:
    """Return the charter with its effects in units of the metric: a share of all steps, or of a spread."""
    if charter.judged_by.is_score:
        return charter
    scale = float(charter.job["total_steps"]) if charter.judged_by is JudgedBy.STEPS_TO else SPREAD_OF_EFFECT
    goal = charter.sample_size
    return replace(
        charter,
        rule=replace(charter.rule, min_effect=scale * charter.rule.min_effect),
        sample_size=None if goal is None else replace(goal, target_effect=scale * goal.target_effect),
    )
