"""What a topic says becomes settings of a study, unless flags say otherwise; beside flags for factors it is a title."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from experiments_db import open_store
from researcher.charter import Asked, ComparedAt, JudgedBy, StudyKind
from researcher.errors import TopicInvalid, TopicNotUnderstood
from researcher.loop.settings_check import check_study
from researcher.scope import ArmPart
from researcher.study import topics
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings, read_settings
from researcher.study.topics import complete_from_topic, require_environment
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.models.adding import add_own

ELSEWHERE = ("http://127.0.0.1:9",)


def test_budgets_of_the_topic_are_those_of_the_study() -> None:
    settings = complete_from_topic("lr on sorting with 2 hours and 30 runs", StudySettings())

    assert (settings.max_hours, settings.max_runs) == (2, 30)
    fixed = complete_from_topic("lr on sorting with 2 hours", StudySettings(max_hours=1))
    assert fixed.max_hours == 1


def test_gpus_of_the_topic_are_asked_of_servers_elsewhere() -> None:
    settings = complete_from_topic("GRPO or RLOO on sorting with 8 GPUs", StudySettings(servers=ELSEWHERE))

    assert (settings.n_gpu, settings.engine) == (8, "auto")
    fixed = complete_from_topic("lr on sorting with 8 GPUs", StudySettings(servers=ELSEWHERE, n_gpu=2))
    assert fixed.n_gpu == 2


@pytest.mark.parametrize(("here", "is_enough"), [(0, False), (7, False), (8, True)])
def test_more_gpus_than_there_are_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, here: int, is_enough: bool
) -> None:
    monkeypatch.setattr(topics, "_count_gpus", lambda _: here)
    if is_enough:
        assert complete_from_topic("lr on sorting with 8 GPUs", StudySettings()).n_gpu == 8
        return
    with pytest.raises(TopicNotUnderstood) as refusal:
        complete_from_topic("lr on sorting with 8 GPUs", StudySettings())

    assert refusal.value.parts == ("8 GPUs",)


def test_environment_of_the_topic_is_that_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("")

    by_reference = complete_from_topic("lr on reasoning_gym:chain_sum?", StudySettings())
    by_path = complete_from_topic("lr on ./tasks.jsonl", StudySettings())

    assert by_reference.env == "reasoning_gym:chain_sum"
    # In full: the study may be taken up from another directory.
    assert by_path.env == str(tmp_path / "tasks.jsonl")
    with pytest.raises(TopicInvalid, match="name one of them"):
        complete_from_topic("lr on ./tasks.jsonl", StudySettings(family="sort"))


def test_language_model_reads_its_topic_itself_and_is_bound_to_the_environment_that_it_names() -> None:
    settings = StudySettings(planner="llm", model="any")

    bound = settings.model_copy(update={"family": "sort"})
    assert complete_from_topic("lr on sorting within 2 hours", settings) == bound
    # Which of two is meant, the language model reads.
    assert complete_from_topic("Does copying help sorting?", settings) == settings


def test_topic_is_stored_as_the_flags_that_say_it() -> None:
    settings = complete_from_topic(
        "Is a learning rate of 3e-3 better than 1e-3 for sorting, at equal tokens, with 3 seeds?", StudySettings()
    )

    assert (settings.vary, settings.baseline, settings.asked) == (("lr=0.003,0.001",), ("lr=0.001",), Asked.BETTER)
    assert (settings.family, settings.equal, settings.seeds) == ("sort", ComparedAt.TOKENS, 3)


def test_one_value_beside_a_varied_setting_is_fixed() -> None:
    settings = complete_from_topic("group size 4 or 8 at a learning rate of 3e-3 on sorting", StudySettings())

    assert (settings.vary, settings.fix) == (("num_repeat=4,8",), ("lr=0.003",))


def test_what_learns_sooner_is_judged_over_all_steps() -> None:
    settings = complete_from_topic("Which group size learns sorting faster?", StudySettings())

    assert (settings.judged_by, settings.eval_every, settings.asked) == ("area", 5, Asked.SOONER)


def test_topic_beside_flags_that_name_factors_is_a_title() -> None:
    given = read_settings({"vary": ["lr=1e-3,3e-3"], "family": "reverse"})

    assert complete_from_topic("Ein Titel, den niemand liest", given) == given
    fixed = read_settings({"vary": ["lr=1e-3,3e-3"], "fix": ["algorithm=dr.grpo"], "family": "reverse"})
    assert complete_from_topic("lr with Dr.GRPO", fixed) == fixed
    with pytest.raises(TopicInvalid, match="names group size, which no flag varies"):
        complete_from_topic("Does the group size matter?", given)


def test_words_that_assume_leaves_out_are_on_record() -> None:
    settings = complete_from_topic("Does lr 1e-3 or 3e-3 matter for my boss?", StudySettings(assume=True))

    assert (settings.vary, settings.not_studied) == (("lr=0.001,0.003",), ("boss",))


def test_assume_gives_no_number_to_another_setting() -> None:
    with pytest.raises(TopicInvalid):
        complete_from_topic("lora dropout 32 on sorting", StudySettings(assume=True)).question()


def test_a_search_is_asked_by_its_words_or_by_a_flag() -> None:
    by_words = complete_from_topic("Find the best settings for sorting", StudySettings())
    by_flag = complete_from_topic("Anything", StudySettings(kind=StudyKind.OPTIMIZE))

    assert by_words.kind is by_flag.kind is StudyKind.OPTIMIZE


@pytest.mark.parametrize("topic", ["lr 1e-3 or 3e-3 on ./tasks.jsonl", "lr 1e-3 or 3e-3 with Dr.GRPO"])
def test_a_topic_that_was_read_is_stored_as_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("")
    settings = complete_from_topic(topic, StudySettings())
    with open_store(tmp_path / "research.db") as store:
        assert create_study(store, topic, settings).settings == settings.model_dump(mode="json")


@pytest.mark.parametrize(
    ("text", "judged_by", "level"),
    [
        ("final", JudgedBy.FINAL, None),
        ("area", JudgedBy.AREA, None),
        ("worst", JudgedBy.WORST, None),
        ("spread", JudgedBy.SPREAD, None),
        ("steps-to:0.9", JudgedBy.STEPS_TO, 0.9),
    ],
)
def test_metric_says_what_runs_are_judged_by(text: str, judged_by: JudgedBy, level: float | None) -> None:
    request = read_settings({"metric": text, "vary": ["lr=1e-3,3e-3"]}).request("A title")

    assert (request.judged_by, request.judged_level) == (judged_by, level)


@pytest.mark.parametrize("text", ["best", "steps-to", "steps-to:", "steps-to:nan", "steps-to:soon", "final:0.9", ""])
def test_metric_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TopicInvalid, match="--metric"):
        read_settings({"metric": text})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"metric": "area"}, "give --eval-every N"),
        ({"metric": "worst"}, "give --eval-every N"),
        ({"metric": "steps-to:0.9"}, "give --eval-every N"),
        ({"asked": "sooner"}, "give --eval-every N"),
        ({"asked": "sooner", "metric": "final"}, "use area or steps-to"),
        ({"asked": "more_stable", "metric": "area", "eval_every": 5}, "use spread or worst"),
        ({"metric": "steps-to:0.9", "eval_every": 5, "vary": ["total_steps=10,20"]}, "--equal steps"),
        ({"metric": "steps-to:90", "eval_every": 5}, "lie from 0 to 1"),
    ],
)
def test_metric_that_cannot_be_measured_or_does_not_answer_is_refused_before_the_study(
    values: dict[str, object], said: str
) -> None:
    settings = read_settings({"planner": "rules", "vary": ["lr=1e-3,3e-3"], **values})
    with pytest.raises(TopicInvalid, match=said):
        check_study("A title", settings)


def test_topic_that_asks_what_is_more_stable_is_judged_by_spread() -> None:
    settings = complete_from_topic("Which learning rate is more stable on sorting?", StudySettings())

    assert (settings.asked, settings.judged_by) == (Asked.MORE_STABLE, JudgedBy.SPREAD)


@pytest.mark.parametrize(
    ("topic", "flags", "model"),
    [
        ("Does the lr matter?", {}, "micro"),
        ("Does the lr matter with nano?", {}, "nano"),
        ("Does the lr matter with micro?", {"env": None, "family": "sort"}, "micro"),
        ("Does the lr matter?", {"env": None, "family": "sort"}, None),
        ("Does the lr matter?", {"train_model": "nano"}, "nano"),
        ("Does the lr matter?", {"fix": ["model=nano"]}, "nano"),
    ],
)
@pytest.mark.parametrize("planner", ["rules", "llm"])
def test_topic_or_flags_name_the_model_and_an_own_environment_starts_from_micro(
    topic: str, flags: dict[str, object], model: str | None, planner: str
) -> None:
    given = {"env": "reasoning_gym:chain_sum", "vary": ["lr=1e-3,3e-3"], "planner": planner, **flags}
    asked = complete_from_topic(topic, read_settings(given)).question()
    assert asked.fixed.get("model") == model


@pytest.mark.parametrize(
    ("topic", "flags", "said"),
    [
        ("Does the lr matter with micro?", {"train_model": "nano"}, "names the model micro, the flags train nano"),
        ("Does the lr matter on qwen3?", {}, "names the model qwen3, which is not on this machine"),
        ("Does the lr matter for sorting?", {"family": "copy"}, "--env about copy"),
    ],
)
@pytest.mark.parametrize("planner", ["rules", "llm"])
def test_a_title_that_names_what_the_study_does_not_have_is_refused(
    topic: str, flags: dict[str, object], said: str, planner: str
) -> None:
    given = {"family": "sort", "vary": ["lr=1e-3,3e-3"], "planner": planner, **flags}
    with pytest.raises(TopicInvalid, match=said):
        complete_from_topic(topic, read_settings(given))


def test_the_environment_of_a_title_is_taken_and_one_without_is_refused_with_the_command() -> None:
    given = read_settings({"vary": ["num_repeat=4,8"], "seeds": 3})
    named = complete_from_topic("Does group size matter for sorting?", given)
    require_environment("Does group size matter for sorting?", given, named)
    assert named.family == "sort"
    for topic in ("Does group size matter?", "Does group size matter for sorting and copying?"):
        with pytest.raises(TopicInvalid) as refusal:
            require_environment(topic, given, complete_from_topic(topic, given))
        command = shlex.split(str(refusal.value).splitlines()[1])
        assert command[:6] == ["researcher", "start", "--topic", topic, "--env", "reverse"]
        assert command[6:] == ["--seeds", "3", "--vary", "num_repeat=4,8"]


def test_an_own_environment_with_the_name_of_the_topic_is_no_contradiction() -> None:
    given = read_settings({"vary": ["lr=1e-3,3e-3"], "env": "/work/my-sort"})
    assert complete_from_topic("Does the lr matter for sorting?", given).env == "/work/my-sort"
    prose = read_settings({"planner": "llm", "env": "/work/parcels"})
    assert complete_from_topic("Find a workflow for counting parcels", prose).scope == "agent"


def test_search_trains_the_model_that_its_topic_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_MODELS", str(tmp_path / "models"))
    add_own("otter-2", BUNDLED_DIRECTORY, lambda gguf, folder: None, lambda line: None)
    for name in ("micro", "otter-2"):
        question = complete_from_topic(f"Find a reward for sorting letters with {name}", StudySettings()).question()
        assert (question.fixed, question.scope.parts) == ({"model": name}, (ArmPart.REWARD,))
    compared = complete_from_topic("nano or otter-2 for sorting?", StudySettings()).question()
    assert [level.settings for level in compared.factors[0].levels] == [{"model": "nano"}, {"model": "otter-2"}]


def test_command_of_a_refused_search_keeps_what_it_looks_for() -> None:
    with pytest.raises(TopicNotUnderstood, match=r"looks for reward.*\n.*--kind optimize --scope reward"):
        complete_from_topic("Find a reward for sorting letters by blarg", StudySettings())
