"""The planner of a replication: the two arms of a finding, as they were, on fresh seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from experiments_db import Author, Experiment, Operator, Verdict
from researcher.charter import Asked, Charter, DecisionRule, Factor, FrameRequest, Level, Question, SampleSizeGoal
from researcher.history import History
from researcher.memory.replication import Replication
from researcher.plan import Arm, ArmProgram, Contrast, Hypothesis, Plan, Relation
from researcher.planner.rules import RulesPlanner


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationPlanner(RulesPlanner):
    """A planner that repeats one comparison and changes nothing about it; rules read the results."""

    replication: Replication

    def frame(self, request: FrameRequest) -> Charter:
        """Return the charter of the finding's study, with fresh alpha and the number of runs that a person chose.

        By default the replication has as many runs per arm as the finding.
        """
        known, earlier = self.replication.known, self.replication.charter
        is_score = earlier.judged_by.is_score
        # The frame node puts the effects of other numbers than scores into units of the metric, for this charter too.
        min_effect = earlier.rule.min_effect if is_score else DecisionRule().min_effect
        goal = SampleSizeGoal(
            seeds=request.seeds or max(known.recipe.runs, earlier.rule.min_seeds),
            is_underpowered=request.is_underpowered,
        )
        effect = abs(known.finding.effect or 0.0)
        return replace(
            earlier,
            topic=request.topic,
            question=f"Is {self.replication.arm.name} {_WORDS[known.finding.verdict]} {self._baseline} "
            f"{earlier.about}?",
            baseline=self._baseline,
            rule=replace(earlier.rule, min_effect=min_effect, shares=(1.0,)),
            budget=request.budget,
            planner=self.name,
            sample_size=replace(goal, target_effect=max(effect, min_effect)) if is_score else goal,
            asks=_question(earlier.asks, self.replication.arm, self.replication.baseline),
            not_studied=(),
            assumptions=self._assumptions(),
            search=None,
        )

    def plan(self, charter: Charter, history: History) -> Plan:
        goal = charter.sample_size or SampleSizeGoal()
        count = goal.seeds or goal.pilot_seeds
        first = max(self.replication.first_seed, history.next_seed)
        arm, baseline = self.replication.arm, self.replication.baseline
        relation, word = Relation.BETTER, "better than"
        if charter.margin is not None:
            relation, word = Relation.EQUIVALENT, "as good as"
        elif self.replication.known.finding.verdict is Verdict.WORSE:
            relation, word = Relation.WORSE, "worse than"
        contrast = Contrast(relation, (arm.name,), (baseline.name,), charter.margin or 0.0)
        statement = f"{arm.name} is {word} {baseline.name} {charter.about}."
        hypothesis = Hypothesis(statement, f"{self.replication.sentence}.", (arm.name,), contrast)
        return Plan(
            iteration=len(history.plans),
            hypotheses=(hypothesis,),
            arms=(_arm(baseline, is_baseline=True), _arm(arm, parent=baseline.name)),
            seeds=tuple(range(first, first + count)),
            rationale=f"The two arms of finding {self.replication.known.finding.id}, on seeds that no study used.",
        )

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        """Return the program of the arm as it was in the finding's study."""
        found = next(each for each in (self.replication.arm, self.replication.baseline) if each.name == arm.name)
        return ArmProgram(arm.name, found.program_code, trusted=found.author is Author.PACKAGE)

    @property
    def _baseline(self) -> str:
        return self.replication.baseline.name

    def _assumptions(self) -> tuple[str, ...]:
        sentences = [f"{self.replication.sentence}. Its arms are repeated as they were, on other seeds."]
        if self.replication.charter.search is not None:
            sentences.append("That study explored, so it may have chosen the arm by some of these held-out tasks.")
        return tuple(sentences)


_WORDS = {
    Verdict.KEEP: "again better than",
    Verdict.WORSE: "again worse than",
    Verdict.NO_BETTER: "again no better than",
    Verdict.EQUAL: "again as good as",
    Verdict.DIFFERENT: "again different from",
    Verdict.INCONCLUSIVE: "better than",
}


def _arm(experiment: Experiment, *, is_baseline: bool = False, parent: str | None = None) -> Arm:
    return Arm(
        name=experiment.name,
        factors=experiment.factors,
        job=experiment.job,
        rationale=experiment.note or "an arm of the finding",
        is_baseline=is_baseline,
        parent=parent,
        environment=experiment.train_environment,
        operator=None if is_baseline else Operator.REPLICATE,
    )


def _question(asks: Question, arm: Experiment, baseline: Experiment) -> Question:
    """Return the question with the factors in which the two arms differ, and with their two levels."""
    factors: list[Factor] = []
    for factor in asks.factors:
        levels: list[Level] = [
            level
            for experiment in (baseline, arm)
            for level in factor.levels
            if level.factors.items() <= experiment.factors.items()
        ]
        if len(levels) == 2 and levels[0] != levels[1]:
            factors.append(replace(factor, levels=tuple(levels), compared_with=levels[0].name))
    is_of_equality = asks.asked is Asked.EQUAL
    asked = Asked.EQUAL if is_of_equality else Asked.EFFECT
    return Question(asked=asked, factors=tuple(factors), fixed=asks.fixed, margin=asks.margin, scope=asks.scope)
