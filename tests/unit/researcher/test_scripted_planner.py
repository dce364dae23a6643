"""The scripted planner gives the answer that the history calls for, in any process."""

from __future__ import annotations

import pytest

from researcher.analysis import Analysis
from researcher.charter import Budget, Charter, DecisionRule, FrameRequest
from researcher.claims import Claim, ClaimKind
from researcher.errors import PlannerError
from researcher.history import Action, Decision, History
from researcher.plan import Arm, Plan, ProgramProblem
from researcher.planner.base import Planner
from researcher.planner.scripted import Script, ScriptedPlanner

CHARTER = Charter(
    topic="t", question="q?", environment_name="reverse", metric="m", direction="maximize", baseline="a",
    search_split="validation", test_split="test", eval_episodes=8, rule=DecisionRule(), budget=Budget(),
    planner="scripted",
)  # fmt: skip
ARM = Arm("a", {}, {}, "r", is_baseline=True)
PLANS = tuple(Plan(number, (), (ARM,), (0,), "r") for number in range(2))
ANALYSIS = Analysis((), (), (), {})
PROBLEMS = (ProgramProblem("lint", "bad"),)
FIRST, SECOND = (Claim(ClaimKind.BEST, arm="a"),), (Claim(ClaimKind.OPINION, text="maybe"),)


@pytest.fixture
def planner() -> Planner:
    return ScriptedPlanner(
        Script(
            charter=CHARTER,
            plans=PLANS,
            programs={"a": "first"},
            decisions=(Decision(Action.REFINE, "more"), Decision(Action.STOP, "enough")),
            interpretations=(FIRST, SECOND),
            repairs={"a": ("second", "third")},
        )
    )


def test_answers_follow_the_history(planner):
    assert planner.frame(FrameRequest(topic="anything")) == CHARTER
    first, second = History(analyses=(ANALYSIS,)), History(plans=PLANS[:1], analyses=(ANALYSIS,) * 2)
    assert planner.plan(CHARTER, History()) == PLANS[0]
    assert planner.plan(CHARTER, second) == PLANS[1]
    assert [planner.interpret(CHARTER, ANALYSIS, history) for history in (first, second)] == [FIRST, SECOND]
    assert [planner.decide(CHARTER, ANALYSIS, history).action for history in (first, second)] == ["refine", "stop"]


def test_repairs_follow_the_program_they_replace(planner):
    script = planner.write_program(CHARTER, ARM, None)
    assert (script.code, script.trusted) == ("first", False)
    for expected in ("second", "third"):
        script = planner.repair_program(CHARTER, ARM, script, PROBLEMS)
        assert script.code == expected
    with pytest.raises(PlannerError, match="no repair of arm a, number 4"):
        planner.repair_program(CHARTER, ARM, script, PROBLEMS)


def test_where_the_script_ends_the_planner_says_so(planner):
    with pytest.raises(PlannerError, match="no plan number 3"):
        planner.plan(CHARTER, History(plans=PLANS))
    with pytest.raises(PlannerError, match="no program for arm b"):
        planner.write_program(CHARTER, Arm("b", {}, {}, "r"), None)
