"""The search for episodes and servers, on both databases."""

from collections.abc import Sequence

import pytest
from store_samples import record_state

from experiments_db import (
    EpisodeFilter,
    EpisodeOrder,
    EpisodeSample,
    EpisodeSummary,
    Run,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingNews,
)

REWARDS = (0.5, None, 1.0, -2.0)
SEARCHES = {
    "all": (EpisodeFilter(), ["e3", "e2", "e1", "e0"]),
    "oldest": (EpisodeFilter(order=EpisodeOrder.OLDEST), ["e0", "e1", "e2", "e3"]),
    "highest": (EpisodeFilter(order=EpisodeOrder.HIGHEST), ["e2", "e0", "e3", "e1"]),
    "lowest": (EpisodeFilter(order=EpisodeOrder.LOWEST), ["e3", "e0", "e2", "e1"]),
    "rewards": (EpisodeFilter(reward_from=0.5, reward_to=1.0), ["e2", "e0"]),
    "steps": (EpisodeFilter(step_from=1, step_to=2), ["e2", "e1"]),
    "kind": (EpisodeFilter(kind="eval"), ["e3", "e1"]),
    "text": (EpisodeFilter(text="ANSWER 2"), ["e2"]),
    "text as JSON writes it": (EpisodeFilter(text='say "é"\n'), ["e3", "e2", "e1", "e0"]),
    "wildcards are text": (EpisodeFilter(text="100 %_"), ["e0"]),
    "nothing": (EpisodeFilter(text="%%%"), []),
}


def messages_of(number: int) -> tuple[dict[str, str], ...]:
    asked = {"role": "user", "content": 'say "é"\n'}
    return asked, {"role": "assistant", "content": "100 %_ sure" if number == 0 else f"Answer {number}"}


def ids(episodes: Sequence[EpisodeSummary | TrainedEpisodeSummary]) -> list[str]:
    return [episode.episode_id for episode in episodes]


@pytest.fixture
def kept(store, run: Run) -> Run:
    """A run with four episodes: every second one is held out, and one has no reward."""
    store.record_episodes(
        run.id,
        [
            EpisodeSample(
                EpisodeSummary(
                    run.id, f"e{number}", "eval" if number % 2 else "train", "train", number, f"task {number // 2}",
                    reward, None, None, number, 1.0,
                ),
                messages_of(number),
                (),
            )
            for number, reward in enumerate(REWARDS)
        ],
    )  # fmt: skip
    return run


@pytest.mark.parametrize("search", SEARCHES)
def test_episodes_of_runs_are_found_by_what_they_are_and_say(store, kept: Run, search: str) -> None:
    wanted, expected = SEARCHES[search]
    found, total = store.search_episodes(wanted, run_id=kept.id)
    assert ids(found) == expected and total == len(expected)
    assert ids(store.search_episodes(wanted, study_id=kept.study_id)[0]) == expected


def test_a_page_of_episodes_says_how_many_there_are(store, kept: Run) -> None:
    found, total = store.search_episodes(EpisodeFilter(), run_id=kept.id, limit=2, offset=1)
    assert (ids(found), total) == (["e2", "e1"], 4)
    assert store.search_episodes(EpisodeFilter(), study_id="st-other") == ([], 0)


def test_trained_episodes_are_found_with_their_group(store) -> None:
    training_id = record_state(store, "a").id
    # Two groups in one step, and one of the same number in the next.
    groups = {"e0": (1, 0), "e1": (1, 0), "e2": (1, 1), "e3": (2, 0)}
    store.add_to_training(
        training_id,
        TrainingNews(
            episodes=tuple(
                TrainedEpisode(
                    TrainedEpisodeSummary(
                        training_id, name, step, "best", "task", "words", group, float(name[1]), None, 0.5, 1, 5.0
                    ),
                    messages_of(int(name[1])),
                    (),
                )
                for name, (step, group) in groups.items()
            )
        ),
    )
    found, total = store.search_trained_episodes(training_id, EpisodeFilter(text="answer", step_to=1))
    assert (ids(found), total) == (["e1", "e2"], 2)
    assert store.search_trained_episodes(training_id, EpisodeFilter(kind="eval")) == ([], 0)
    assert ids(store.list_trained_group(training_id, "e0")) == ["e1", "e0"]
    assert ids(store.list_trained_group(training_id, "e3")) == ["e3"]
    assert store.list_trained_group(training_id, "unknown") == []


def test_the_group_of_a_kept_episode_is_its_task_in_that_step(store, kept: Run) -> None:
    summary = EpisodeSummary(
        kept.id, "again", "train", "train", 2, "task 1", 0.25, None, None, 2, 1.0
    )  # fmt: skip
    store.record_episodes(kept.id, [EpisodeSample(summary, (), ())])
    assert ids(store.list_episode_group(kept.id, "again")) == ["e2", "again"]
    assert store.list_episode_group(kept.id, "unknown") == []


def test_a_training_is_found_by_the_key_that_launched_it(store, run: Run) -> None:
    record_state(store, "first")
    launched = record_state(store, "second", launch_key=run.idempotency_key).id
    found = store.find_launched_training(run.idempotency_key)
    assert found is not None and found.id == launched
    assert store.find_launched_training("unknown") is None
