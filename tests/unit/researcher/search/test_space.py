"""The space of a search without factors has the baseline, leaves alone what is fixed, and offers the library."""

import pytest

from researcher.charter import FrameRequest, Question, StudiedEnvironment, StudyKind
from researcher.plan import Arm
from researcher.planner.designs import default_job
from researcher.planner.rules import RulesPlanner
from researcher.programs import list_programs, load_program_code
from researcher.question.needs import acting
from researcher.scope import Scope
from researcher.search.rules import default_space, programs_of
from swarm import TrainJob

SEARCH = Question(kind=StudyKind.OPTIMIZE)
OWN = "def agent(task, model, session):\n    return model.chat(session.messages)\n"


def frame(programs=None, environment: StudiedEnvironment | None = None, question: Question = SEARCH):
    planner = RulesPlanner(programs=programs or {})
    request = FrameRequest("Find good settings.", None if environment else "reverse", environment, question=question)
    return planner, planner.frame(request)


def levels_of(charter, name: str) -> list[str]:
    return [level.name for factor in charter.asks.factors if factor.name == name for level in factor.levels]


@pytest.mark.parametrize("model", ["nano", "micro"])
def test_every_level_is_a_setting_that_the_service_accepts_and_the_first_is_the_jobs_own(model):
    job = default_job("reverse", steps=None, base={"model": model})
    for factor in default_space(job, (), (), Scope()):
        values = [TrainJob.model_validate(acting({**job, **factor.needs, **level.settings})) for level in factor.levels]
        assert len(values) == len(set(map(repr, values))) > 1
        own = TrainJob.model_validate(acting({**factor.needs, **job}))
        assert values[0].resolve() == own.resolve(), factor.name


def test_a_setting_that_a_person_fixed_is_not_searched():
    _, charter = frame(question=Question(kind=StudyKind.OPTIMIZE, fixed={"lr": 2e-3}))
    assert charter.job["lr"] == 2e-3
    assert "lr" not in charter.asks.varied and "num_repeat" in charter.asks.varied


def test_the_program_is_a_factor_with_the_plain_one_and_the_library():
    planner, charter = frame()
    assert levels_of(charter, "program") == ["plain", *(program.name for program in list_programs())]
    for name in levels_of(charter, "program"):
        written = planner.write_program(charter, Arm(name, {"program": name}, {}, ""), None)
        assert written.trusted
        assert (written.code == load_program_code(name)) if name != "plain" else ("answer_in_turn" in written.code)


def test_a_program_of_a_person_takes_the_place_of_the_plain_one():
    planner, charter = frame({"mine": OWN, "best-of-n": OWN})
    first, second, *others = levels_of(charter, "program")
    assert (first, second) == ("mine", "best-of-n") and "plain" not in others and "best-of-n" not in others
    assert planner.write_program(charter, Arm("b", {"program": "best-of-n"}, {}, ""), None).code == OWN


def test_an_environment_with_an_agent_of_its_own_gets_no_other_agent():
    _, charter = frame(environment=StudiedEnvironment("verifiers:some", "some", "", "digest"))
    assert levels_of(charter, "program") == ["plain", "easy-first", "shaped-by-details"]
    known = programs_of({}, Scope(), runs_own_agent=False)
    assert programs_of({}, Scope(), runs_own_agent=True).keys() < known.keys()
