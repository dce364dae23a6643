"""One study: its question, its arms, its results and its decisions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import (
    ArmFailure,
    BudgetKind,
    Finding,
    QuestionStatus,
    RunStatus,
    Severity,
    StudyStatus,
    Verdict,
)
from ui import elements, formats, live, queries, study_files
from ui.contents import AUTOMATIC, ArmScore, StudyContents, best_arm
from ui.study_parts import calls_view, notebook_view, plan_view, progress_view, search_view

EVENT_LIMITS = (200, 1000, 5000)
REPORTS = {"report.html": "Report (HTML)", "report.markdown": "Report (Markdown)"}
LIMITS = {
    BudgetKind.RUNS: ("Runs", "max_runs"),
    BudgetKind.WALL_CLOCK_S: ("Wall clock", "max_wall_s"),
    BudgetKind.WORKING_S: ("Training time", None),
    BudgetKind.GPU_HOURS: ("GPU-hours", "max_gpu_hours"),
    BudgetKind.LLM_TOKENS: ("LLM tokens", "max_llm_tokens"),
    BudgetKind.COST_USD: ("LLM cost", "max_llm_usd"),
    BudgetKind.MONEY: ("Money", "max_money"),
}


def show_head(contents: StudyContents) -> None:
    study = contents.study
    st.title(formats.plain(formats.shortened(study.topic, 300)), anchor=False)
    facts = [
        elements.badge(study.status),
        f"planner {formats.plain(study.planner)}",
        f"started {formats.moment(study.created_at)}",
        f"{elements.worked(contents)} at work",
        f"`{study.id}`",
    ]
    if study.status_reason and study.status is not StudyStatus.FAILED:
        facts.insert(1, formats.plain(study.status_reason))
    elements.show_facts(*facts)
    elements.show_silence(contents)
    for item in contents.questions:
        if item.status is QuestionStatus.OPEN:
            st.warning(
                f"Question {item.id} ({formats.plain(item.node)}) waits for an answer.",
                icon=":material/contact_support:",
            )
    if study.status is StudyStatus.FAILED:
        st.error(
            f"The study failed: {formats.plain(study.status_reason or 'no reason is on record')}",
            icon=":material/error:",
        )


def show_links(contents: StudyContents) -> None:
    """Show where else the study can be looked at, and its reports as files."""
    elements.link("runs", "Runs of this study", icon=":material/table_rows:", study=contents.study.id)
    elements.link("compare", "Compare its arms", icon=":material/compare_arrows:", study=contents.study.id)
    home = queries.home_of(elements.database())
    for artifact in elements.store().list_artifacts(contents.study.id):
        if artifact.kind not in REPORTS or home is None:
            continue
        path = study_files.locate(home, contents.study.id, artifact.path)
        if path is not None and study_files.is_offered(path):
            st.download_button(
                REPORTS[artifact.kind],
                partial(study_files.content, path),
                file_name=f"{contents.study.id}{path.suffix}",
                type="tertiary",
                icon=":material/download:",
                on_click="ignore",
                key=f"download-{artifact.id}",
            )


def show_figures(contents: StudyContents) -> None:
    runs = contents.claiming
    failed = sum(run.status is RunStatus.FAILED for run in runs)
    finished = sum(run.status is RunStatus.FINISHED for run in runs)
    active = sum(not run.status.is_over and run.status is not RunStatus.PLANNED for run in runs)
    with st.grid(4, min_column_width=170):
        elements.show_best_arm(contents)
        elements.show_baseline(contents)
        elements.show_metric("Arms", str(len(contents.experiments)))
        note = f"{failed} failed, {active} under way"
        total = len(runs) + progress_view.count_waiting(contents)
        elements.show_metric("Trainings finished", f"{finished} / {total}", help=note)
        if contents.is_search:
            short = contents.short
            over = sum(run.status is RunStatus.FINISHED for run in short)
            elements.show_metric("Short runs finished", f"{over} / {len(short)}", help="exploration, no claim")


def show_answer(contents: StudyContents) -> None:
    """Show the question and the answer that the scores and the charter's rule give.

    No text of a planner appears here.
    """
    with st.container(border=True):
        compared = {run.experiment_id for run in contents.claiming}
        for arm in contents.search_arms:
            if arm.failure is ArmFailure.NOT_AS_CLAIMED and arm.experiment.id in compared:
                named, why = formats.name(arm.name), formats.plain(arm.reason)
                st.markdown(f"{named} is not what it claims to be, so it has no verdict: {why}.")
        question = str(contents.document.get("question", contents.study.topic))
        st.markdown(f":material/help: **Question** {formats.plain(question)}")
        st.markdown(f":material/lightbulb: **{'So far' if contents.is_live else 'Answer'}** {answer(contents)}")
        for hypothesis in contents.hypotheses:
            if hypothesis.verdict is not None:
                st.markdown(f"{elements.badge(hypothesis.verdict)} {formats.plain(hypothesis.statement)}")


def answer(contents: StudyContents) -> str:
    best = best_arm(contents)
    if best is None and contents.is_search:
        return "Nothing is confirmed on fresh seeds yet. Short runs claim nothing."
    if best is None:
        return "No run has a final score yet."
    lead = f"{formats.name(best.arm.name)} scores best: {formats.score(best.mean)}"
    lead += f" over {formats.count(len(best.seeds), 'seed')}"
    if best.arm.is_baseline:
        return f"{lead}. It is the baseline."
    finding = next((item for item in contents.last_findings if item.experiment_id == best.arm.id), None)
    if finding is None or finding.effect is None:
        return f"{lead}."
    verdict = f"{elements.badge(finding.verdict)} {finding.about}"
    return f"{lead}, {formats.change(finding.effect)} against the baseline {verdict}"


def show_ranking(contents: StudyContents, ranked: list[ArmScore]) -> None:
    scored = [item for item in ranked if item.mean is not None]
    if not scored:
        st.caption("No run has a final score yet.")
        return
    rows = [
        elements.RankedItem(
            item.arm.name,
            item.mean,
            item.ci_low,
            item.ci_high,
            tuple((score.seed, score.final) for score in item.seeds),
        )
        for item in scored
        if item.mean is not None
    ]
    elements.show_ranking(rows, metric=contents.metric, alt=f"Arms ranked by {contents.metric}, best first")
    st.caption(
        f"Scored by the evaluator: {formats.plain(contents.metric)}, {formats.plain(contents.search_split)} split."
    )


def arm_table(contents: StudyContents, ranked: list[ArmScore]) -> pd.DataFrame:
    findings = {finding.experiment_id: finding for finding in contents.last_findings}
    rows: list[dict[str, Any]] = []
    for item in ranked:
        finding = findings.get(item.arm.id)
        rows.append(
            {
                "Arm": formats.printable(item.arm.name),
                "Verdict": [contents.verdict_of(finding)] if finding else ["baseline"] if item.arm.is_baseline else [],
                "Mean": item.mean,
                "From": item.ci_low,
                "To": item.ci_high,
                "Before training": item.base_mean,
                "With the plain agent": item.mean_with_plain,
                "Test": item.test_mean,
                "Seeds": len(item.seeds),
                "Factors": formats.printable(formats.settings(item.arm.factors)),
            }
        )
    return pd.DataFrame(rows)


def finding_table(contents: StudyContents, findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    names = {arm.id: formats.printable(arm.name) for arm in contents.experiments}
    return [
        {
            "Arm": names[finding.experiment_id or ""],
            "Against": names.get(finding.baseline_id or "", formats.MISSING),
            "Verdict": [contents.verdict_of(finding)],
            "Difference": finding.effect,
            "From": finding.ci_low,
            "To": finding.ci_high,
            "p": formats.probability(finding.p_value),
            "p corrected": formats.probability(finding.p_adjusted),
            "Seeds": len(finding.details.get("seeds", finding.run_ids)),
            "Split": formats.printable(finding.split),
        }
        for finding in findings
    ]


def verdict_column() -> Any:
    return elements.badge_column([*Verdict, "baseline", "disqualified"])


def show_results(contents: StudyContents) -> None:
    ranked = list(contents.ranking)
    st.subheader("Ranking", anchor=False)
    show_ranking(contents, ranked)
    if ranked:
        table = arm_table(contents, ranked).dropna(axis="columns", how="all")
        numbers = elements.number_columns("Mean", "From", "To", "Before training", "With the plain agent", "Test")
        elements.show_table(table, columns={"Verdict": verdict_column(), **numbers}, alt="Arms, ranked")
    st.subheader("Comparisons with the baseline", anchor=False)
    findings = contents.last_findings
    if not findings:
        st.caption("Nothing has been compared yet.")
        return
    numbers = elements.number_columns("Difference", "From", "To", format="%+.3f")
    elements.show_table(
        finding_table(contents, findings),
        columns={"Verdict": verdict_column(), **numbers},
        alt="Differences from the baseline with verdicts",
    )
    confidence = formats.setting(100 * findings[0].confidence)
    method = formats.plain(findings[0].method)
    about = findings[0].about
    st.caption(f"Method: {method}; intervals at {confidence} %. The charter's rule sets the verdict, {about}.")


def show_decisions(contents: StudyContents) -> None:
    if not contents.decisions:
        st.caption("Nothing has been decided yet.")
    for decision in contents.decisions:
        with st.container(border=True):
            st.markdown(
                f"**Iteration {decision.iteration + 1}** :violet-badge[{formats.plain(decision.action)}] "
                f":small[{formats.moment(decision.created_at)}]"
            )
            st.markdown(formats.plain(decision.reason))
            for arm, why in decision.details.get("disqualified", {}).items():
                st.markdown(f"**{formats.name(arm)}** is disqualified: {formats.plain(why)}")
            for arm, why in decision.details.get("suspect", {}).items():
                st.markdown(f"The planner calls **{formats.name(arm)}** suspect: {formats.plain(why)}")
            if decision.details.get("author") != AUTOMATIC:
                st.caption("The planner's words, unchecked.")
            if words := str(decision.details.get("interpretation") or ""):
                st.caption(f"The planner's claims that the record bears out: {formats.plain(words)}")


def budget_text(kind: BudgetKind, amount: float) -> str:
    if kind in (BudgetKind.WALL_CLOCK_S, BudgetKind.WORKING_S):
        return formats.duration(amount)
    return f"${amount:,.4f}" if kind is BudgetKind.COST_USD else f"{amount:,g}"


def present_limits(contents: StudyContents) -> Mapping[str, Any]:
    """Return the limits that apply now.

    The settings of the study hold the current limits. The charter holds those at its beginning.
    """
    settings = contents.study.settings
    if "max_runs" not in settings:
        return contents.document.get("budget", {})
    hours = settings.get("max_hours")
    return {**settings, "max_wall_s": None if hours is None else hours * 3600}


def show_budget(contents: StudyContents) -> None:
    limits = present_limits(contents)
    with st.grid(3, min_column_width=220):
        for kind, (title, key) in LIMITS.items():
            used = contents.used.get(kind, 0.0)
            limit = limits.get(key) if key else None
            if not used and limit is None:
                continue
            with st.container(border=True, height="stretch"):
                st.metric(title, budget_text(kind, used))
                if limit:
                    st.progress(min(1.0, used / limit), text=f"of {budget_text(kind, limit)}")
                else:
                    st.caption("no limit")
    if contents.usage.calls:
        usage = contents.usage
        calls = f"{formats.count(usage.calls, 'LLM call')}, {usage.failed_calls} failed"
        st.caption(f"{calls}: {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out.")


def show_events(contents: StudyContents) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        choices = [severity.value for severity in Severity]
        least = st.segmented_control("At least", choices, default=choices[0], required=True, key="severity")
        limit = st.selectbox("Newest", EVENT_LIMITS, key="event_limit", width=140)
    events = elements.store().list_events(
        contents.study.id, min_severity=Severity(least), newest_first=True, limit=limit or EVENT_LIMITS[0]
    )
    if not events:
        st.caption("No such event.")
        return
    rows = [
        {
            "Time (UTC)": formats.clock(event.created_at),
            "Severity": [event.severity.value],
            "Event": event.kind,
            "Message": formats.printable(event.message),
            "Run": event.run_id,
        }
        for event in events
    ]
    severity = elements.badge_column(choices, width="small")
    columns = {"Severity": severity, **elements.wide_column("Message")}
    elements.show_table(rows, columns=columns, alt="Events")


def show_study(study_id: str) -> None:
    with elements.store_errors():
        contents = queries.load_study(elements.database(), study_id)
        show_head(contents)
        show_figures(contents)
        show_answer(contents)
        sections = {
            **({"Progress": progress_view.show_progress} if contents.is_live else {}),
            "Results": show_results,
            **({"Search": search_view.show_search} if contents.is_search else {}),
            "Plan": plan_view.show_plan,
            "Decisions": show_decisions,
            "Notebook": notebook_view.show_notebook,
            "Model calls": calls_view.show_calls,
            "Budget": show_budget,
            "Events": show_events,
        }
        elements.show_sections({title: partial(show, contents) for title, show in sections.items()}, key="section")


contents = elements.choose_study()
if contents is not None:
    study_id = contents.study.id
    with st.container(horizontal=True, vertical_alignment="center"):
        is_followed = contents.is_live and st.toggle("Live", value=True, help="Show what is new", key="live")
        show_links(contents)
    token = partial(queries.study_token, elements.database(), study_id)
    live.follow(show_study, study_id, token=token, is_on=is_followed)
