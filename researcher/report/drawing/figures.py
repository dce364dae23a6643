"""The figures of a report: learning curves, final scores and differences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from researcher.charter import Charter, JudgedBy
from researcher.report.drawing.pictures import PAPER, TEXT, Drawing, Picture, draw_picture, shorten
from researcher.report.drawing.search_figure import draw_search_tree
from researcher.report.formats import format_difference, format_score, is_known
from researcher.report.numbers.curves import is_same_reward, mean_curve
from researcher.report.numbers.facts import ArmFacts, Curve, StudyFacts

# Okabe and Ito's palette, which suits any colour vision, without yellow, which vanishes on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8A6FDF", "#7F7F7F")
LINES = ("-", "--", ":", "-.")
VERDICT_COLORS = {
    "keep": "#009E73",
    "worse": "#D55E00",
    "no better": "#E69F00",
    "equal": "#009E73",
    "different": "#D55E00",
    "inconclusive": "#8A8F98",
}
MAX_HEIGHT_IN = 5.8
"""The height of a figure with many rows; it and the answer fit on one screen."""
CURVES_HEIGHT_IN = 3.9
SCORES, CURVES, TREE = "final-scores", "held-out-curves", "search-tree"
"""The names of the figures that may be the main one."""
OF_CURVES = frozenset({JudgedBy.AREA, JudgedBy.STEPS_TO, JudgedBy.WORST})
"""The numbers of a run that its curve shows better than its last score."""


ArmCurves = tuple[ArmFacts, Mapping[str, Curve]]
"""An arm with its curves by run."""


def find_main(facts: StudyFacts, names: Collection[str]) -> str:
    """Return the name of the figure that shows the answer; empty if there is none.

    It is the scores of the arms with their intervals, or the curves where arms are judged by their curves.
    """
    order = (CURVES, SCORES, TREE) if facts.charter.judged_by in OF_CURVES else (SCORES, TREE)
    return next((name for name in order if name in names), "")


def draw_all(facts: StudyFacts, *, has_images: bool = True) -> tuple[Picture, ...]:
    """Return the figures for which the study has numbers.

    Without `has_images`, they contain only titles, captions and data.
    """
    drawings = list(_list_drawings(facts))
    main = find_main(facts, [each.name for each in drawings])
    return tuple(draw_picture(each, is_main=each.name == main, has_image=has_images) for each in drawings)


def _list_drawings(facts: StudyFacts) -> Iterator[Drawing]:
    measured = [arm for arm in facts.arms if arm.search.scores]
    compared = [arm for arm in facts.compared if arm.comparison and is_known(arm.comparison.difference)]
    if facts.exploration is not None:
        yield draw_search_tree(facts, facts.exploration)
    if measured:
        yield Drawing(
            SCORES,
            "Held-out score of each arm",
            f"Dots: one run per seed, scored by the evaluator on the {facts.charter.search_split} split. Bar: mean "
            f"with {100 * (1 - facts.charter.rule.alpha):g} % interval over seeds. Circles: the same runs before "
            "training.",
            min(MAX_HEIGHT_IN, 1.0 + 0.5 * len(measured)),
            partial(_draw_scores, facts=facts, arms=measured),
            _list_scores(measured),
        )
    if compared:
        yield Drawing(
            "differences",
            f"Difference from the baseline {facts.charter.baseline}",
            f"Dots: the runs of the arm, less the mean of the baseline. Bar: difference of the means with "
            f"{100 * facts.charter.confidence:g} % interval. Dashed: {_bound(facts.charter)}.",
            min(MAX_HEIGHT_IN, 1.1 + 0.42 * len(compared)),
            partial(_draw_differences, facts=facts, arms=compared),
            _list_differences(compared),
        )
    yield from _list_curves(facts, measured)


def _list_curves(facts: StudyFacts, arms: list[ArmFacts]) -> Iterator[Drawing]:
    """Yield the figures over training steps: the true grade, and the training reward if all arms have the same."""
    batches = "Batches are drawn from the train split, so this is not the score that arms are judged by."
    if any(arm.solved for arm in arms):
        text = f"Share of the episodes of each training batch that the environment calls solved. {batches}"
        name, title, label = "success-curves", "Success rate while training", "share of the batch solved"
        yield _curves(name, title, text, label, "success_rate", [(arm, arm.solved) for arm in arms], is_share=True)
    is_same = is_same_reward([arm.experiment for arm in arms])
    if is_same and any(arm.curves and arm.curves != arm.solved for arm in arms):
        text = f"Mean reward of each training batch, which all arms train on. {batches}"
        name, title, label = "reward-curves", "Training reward", "mean reward of the batch"
        yield _curves(name, title, text, label, "training_reward", [(arm, arm.curves) for arm in arms])
    if any(len(curve) > 2 for arm in arms for curve in arm.held_out.values()):
        text = (
            f"Scored by the evaluator on the {facts.charter.search_split} split every {facts.charter.eval_every} "
            "steps. This is the true grade, whatever reward an arm trains on."
        )
        scored: list[ArmCurves] = [
            (arm, {run: tuple((at.step, at.mean) for at in curve) for run, curve in arm.held_out.items()})
            for arm in arms
        ]
        yield _curves(CURVES, "Held-out score while training", text, "held-out score", "score", scored)


def _curves(
    name: str, title: str, text: str, label: str, column: str, arms: list[ArmCurves], *, is_share: bool = False
) -> Drawing:
    rows = [
        [arm.name, item.run.seed, item.run.id, step, value]
        for arm, curves in arms
        for item in arm.runs
        for step, value in curves.get(item.run.id, ())
    ]
    return Drawing(
        name,
        title,
        f"{text} Averaged over seeds; the band spans the seeds.{_describe_ends(arms)}",
        CURVES_HEIGHT_IN,
        partial(_draw_curves, arms=arms, label=label, is_share=is_share),
        [["arm", "seed", "run", "step", column], *rows],
    )


def _describe_ends(arms: Sequence[ArmCurves]) -> str:
    early = sum(len(_early(arm) & curves.keys()) for arm, curves in arms)
    if not early:
        return ""
    stopped = "a run stopped before its last step; its curve is drawn on at its last value"
    if early > 1:
        stopped = f"{early} runs stopped before their last step; their curves are drawn on at their last values"
    return f" Crosses: {stopped} (the thin line), so that no mean gains by losing a run."


def _early(arm: ArmFacts) -> set[str]:
    return {item.run.id for item in arm.runs if item.run.diagnosis}


def _list_scores(arms: list[ArmFacts]) -> list[list[Any]]:
    rows = [
        [arm.name, seed, run_id, arm.base.scores.get(seed), score]
        for arm in arms
        for (seed, score), run_id in zip(arm.search.scores.items(), arm.search.run_ids, strict=True)
    ]
    return [["arm", "seed", "run", "before", "after"], *rows]


def _list_differences(arms: list[ArmFacts]) -> list[list[Any]]:
    rows = [
        [arm.name, found.baseline, found.difference, found.ci_low, found.ci_high, arm.verdict]
        for arm in arms
        if (found := arm.comparison) is not None
    ]
    return [["arm", "baseline", "difference", "low", "high", "verdict"], *rows]


def _draw_scores(axes: Axes, *, facts: StudyFacts, arms: list[ArmFacts]) -> None:
    for row, arm in enumerate(arms):
        color = COLORS[row % len(COLORS)]
        offsets = _spread(len(arm.search.scores))
        axes.plot(list(arm.base.scores.values()), [row + o for o in _spread(len(arm.base.scores))], "o", ms=4.5,
                  mfc="none", mec=TEXT, mew=0.8, alpha=0.55)  # fmt: skip
        axes.plot(list(arm.search.scores.values()), [row + o for o in offsets], "o", ms=4.5, color=color, alpha=0.75)
        _draw_interval(axes, row, arm.search.mean, arm.search.ci_low, arm.search.ci_high, color,
                       format_score(arm.search.mean))  # fmt: skip
    _label_rows(axes, [arm.name for arm in arms])
    axes.set_xlabel(facts.charter.judged)


def _draw_differences(axes: Axes, *, facts: StudyFacts, arms: list[ArmFacts]) -> None:
    axes.axvline(0, color=TEXT, lw=0.9)
    charter = facts.charter
    bounds = (charter.sign * charter.rule.min_effect,) if charter.margin is None else (-charter.margin, charter.margin)
    for bound in bounds:
        axes.axvline(bound, color=TEXT, lw=0.8, ls="--", alpha=0.6)
    for row, arm in enumerate(arms):
        found = arm.comparison
        if found is None:
            continue
        color = VERDICT_COLORS[found.verdict]
        # An arm may also have runs of other plans.
        own = [item.value for item in arm.runs if item.value is not None and item.run.id in found.run_ids]
        apart = [value - arm.compared_means[1] for value in own if is_known(arm.compared_means[1])]
        axes.plot(apart, [row + o for o in _spread(len(apart))], "o", ms=4.5, color=color, alpha=0.75)
        _draw_interval(axes, row, found.difference, found.ci_low, found.ci_high, color,
                       format_difference(found.difference))  # fmt: skip
    _label_rows(axes, [f"{shorten(arm.name)}\n{arm.verdict}" for arm in arms])
    axes.set_xlabel(f"difference in {facts.charter.judged}")


def _draw_curves(axes: Axes, *, arms: list[ArmCurves], label: str, is_share: bool) -> None:
    """Draw a thick line while all seeds are trained, and a thin one after the first has ended."""
    for index, (arm, curves) in enumerate(arms):
        found = mean_curve(curves, _early(arm), int(arm.experiment.job.get("total_steps", 0)))
        if found is None:
            continue
        color, line = COLORS[index % len(COLORS)], LINES[index // len(COLORS) % len(LINES)]
        name = shorten(arm.name) + (f", {len(found.early)} of {found.runs} stopped" if found.early else "")
        whole = [step for step in found.steps if found.carried_from is None or step <= found.carried_from]
        axes.plot(whole, found.mean[: len(whole)], line, color=color, lw=1.8, label=name)
        if found.carried_from is not None:
            rest = slice(len(whole) - 1, None)
            axes.plot(found.steps[rest], found.mean[rest], line, color=color, lw=0.8)
        for step, value in found.early:
            axes.plot([step], [value], "x", ms=6, color=color)
        axes.fill_between(found.steps, found.low, found.high, color=color, alpha=0.14, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.set_xlabel("training step")
    axes.set_ylabel(label)
    columns = min(3, max(1, 90 // (4 + max((len(shorten(arm.name)) for arm, _ in arms), default=1))))
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, labelcolor=TEXT)


def _draw_interval(
    axes: Axes, row: int, mean: float, low: float | None, high: float | None, color: str, said: str
) -> None:
    if low is not None and high is not None:
        axes.plot([low, high], [row, row], "-", color=color, lw=2.4, solid_capstyle="round")
    axes.plot([mean], [row], "D", ms=6.5, color=color, mec=PAPER, mew=1.2)
    axes.annotate(said, (mean, row), (0, 6), textcoords="offset points", ha="center", fontsize=8.5)


def _label_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), [shorten(name) if "\n" not in name else name for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _spread(count: int) -> list[float]:
    """Return offsets that keep the dots of one row apart."""
    if count < 2:
        return [0.16] * count
    return [0.16 + 0.08 * (index / (count - 1) - 0.5) for index in range(count)]


def _bound(charter: Charter) -> str:
    if charter.margin is not None:
        return f"the margin within which arms are equal, {charter.margin:g}"
    return f"the smallest effect that counts, {charter.rule.min_effect:g}"
