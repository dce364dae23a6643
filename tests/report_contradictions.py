"""Finds where the finished texts of a study contradict themselves, each other or the runs in them.

It reads what a person reads: the page and the lines of the terminal. It shares no code with what writes
them: counts are counted anew in the table of runs, means, intervals and differences are computed anew from the scores
there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from statistics import fmean

Row = dict[str, str]
NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e-?\d+)?"
STEP = 0.0011
"""What rounding to three digits may take away twice."""


@dataclass(frozen=True)
class Texts:
    """What was written of one study; `is_single` says that one plan made all numbers, so that they are of its runs."""

    html: str
    answer: str
    verdicts: tuple[str, ...]
    runs: str
    recommendation: tuple[str, ...]
    is_single: bool


@dataclass
class Section:
    """One part of a page below its heading."""

    lines: list[str] = field(default_factory=list)
    tables: list[list[Row]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.lines)

    def table(self, column: str) -> list[Row]:
        return next((rows for rows in self.tables if rows and column in rows[0]), [])


class Page(HTMLParser):
    """A page as its reader sees it, as a whole and by heading; what stands before the first one is under ""."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: dict[str, Section] = {"": Section()}
        self.rows: list[list[str]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self._at = ""
        self._text: list[str] = []
        self._head: list[str] = []
        self._is_hidden = False
        self.feed(html)
        self._flush()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.ids += [values["id"]] if values.get("id") else []
        self.links += [values["href"]] if values.get("href") else []
        self.sources += [value for name in ("src", "srcset") if (value := values.get(name))]
        if tag in ("p", "li", "td", "th", "h1", "h2", "table", "tr", "pre"):
            self._flush()
        if tag == "table":
            self.sections[self._at].tables.append([])
            self._head = []
        if tag == "tr":
            self.rows.append([])
        self._is_hidden = self._is_hidden or tag in ("style", "title", "pre")

    def handle_endtag(self, tag: str) -> None:
        text = " ".join("".join(self._text).split())
        if tag == "h2":
            self._at, self._text = text.split(" with ")[0], []
            self.sections[self._at] = Section()
        elif tag in ("td", "th"):
            self.rows[-1].append(text)
            self._text = []
        elif tag == "tr":
            if not self._head:
                self._head = self.rows[-1]
            else:
                self.sections[self._at].tables[-1].append(dict(zip(self._head, self.rows[-1], strict=True)))
        elif tag in ("p", "li"):
            self._flush()
        elif tag in ("style", "title", "pre"):
            self._is_hidden, self._text = False, []

    def handle_data(self, data: str) -> None:
        self.text += data
        if not self._is_hidden:
            self._text.append(data)

    def _flush(self) -> None:
        text = " ".join("".join(self._text).split())
        if text:
            self.sections[self._at].lines.append(text)
        self._text = []


@dataclass(frozen=True)
class Arm:
    """One arm as the tables of a page show it."""

    name: str
    row: Row
    ends: Row
    comparison: Row
    values: list[float]

    @property
    def verdict(self) -> str:
        return self.row["verdict"]


class Report:
    """One page with the lines of the terminal."""

    def __init__(self, page: Page, texts: Texts) -> None:
        self.page, self.texts = page, texts
        self.trainings = [row for row in self["Runs"].table("counts as") if row["status"] != "planned"]
        arms, compared = self["Arms"], self["Comparisons"].table("by training")
        ends = {row["arm"]: row for row in arms.table("begun")}
        comparisons = {row["arm"]: row for row in compared}
        self.arms = {
            row["arm"]: Arm(
                row["arm"],
                row,
                ends[row["arm"]],
                comparisons.get(row["arm"], {}),
                [
                    float(run["counts as"])
                    for run in self.trainings
                    if run["arm"] == row["arm"] and _is(run["counts as"])
                ],
            )
            for row in arms.table("rank")
        }
        self.answer = next((line for line in self[""].lines if line == texts.answer), "")

    def __getitem__(self, heading: str) -> Section:
        return self.page.sections.get(heading, Section())

    @property
    def text(self) -> str:
        """All that the program says itself, without what a planner wrote."""
        lines = [line for section in self.page.sections.values() for line in section.lines]
        return " ".join([*map(_own_words, lines), *self.texts.verdicts, self.texts.runs])

    @property
    def prose(self) -> str:
        return " ".join(
            [*self[""].lines, self["What was done"].text, self["Recommendation"].text, self["Limitations"].text]
        )


def find_contradictions(texts: Texts) -> list[str]:
    """Return what contradicts what, one line each."""
    page = Page(texts.html)
    report = Report(page, texts)
    return [*_against_terminal(page, texts), *(line for check in CHECKS for line in check(report))]


def _against_terminal(each: Page, texts: Texts) -> Iterator[str]:
    places = {
        "the headline answers otherwise than the terminal": texts.answer in each.sections[""].lines,
        "the work is counted otherwise than on the terminal": texts.runs in each.sections["What was done"].text,
        "the terminal recommends otherwise": list(texts.recommendation) == each.sections["Recommendation"].lines,
    }
    yield from (what for what, is_same in places.items() if not is_same)


def _check_counts(report: Report) -> Iterator[str]:
    """The table of ends against the table of runs, and every sentence with a count against both."""
    total: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for arm in report.arms.values():
        runs = [row for row in report.trainings if row["arm"] == arm.name]
        early, failed = _kinds(arm.ends["ended early"]), _kinds(arm.ends["failed"])
        of = {name: int(re.match(r"\d+", arm.ends[name])[0]) for name in ("trained again", "without a score")}  # type: ignore[index]
        begun, counting, finished = (int(arm.ends[name]) for name in ("begun", "count", "finished"))
        if begun != len({row["seed"] for row in runs}):
            yield f"{arm.name}: {begun} begun, the table of runs has others"
        if not counting == len(arm.values) == len(arm.row["seeds"].split()):
            yield f"{arm.name}: {counting} count, {len(arm.values)} have a value, seeds are {arm.row['seeds']}"
        if finished + sum(early.values()) != sum(row["status"] == "finished" for row in runs):
            yield f"{arm.name}: {finished} finished and {early} ended early are not the finished rows"
        if not counting - finished - sum(early.values()) <= sum(failed.values()) <= counting:
            yield f"{arm.name}: {failed} failed of {counting}"
        if counting + of["without a score"] > begun or of["trained again"] > begun:
            yield f"{arm.name}: {counting} count, {of} of {begun}"
        kinds.update(failed)
        total.update(begun=begun, count=counting, finished=finished, early=sum(early.values()), **_named(of))
        total["failed"] += sum(failed.values())
    yield from _check_run_sentences(report, total, kinds)


def _check_run_sentences(report: Report, total: Counter[str], kinds: Counter[str]) -> Iterator[str]:
    text, runs = report.text, report.texts.runs
    said = [("begun", int(number)) for number in re.findall(r"(\d+) runs? begun", text)]
    for words, name in (("finished", "finished"), (r"ended early \(", "early"), ("trained again after", "again")):
        said += [(name, int(number)) for number in re.findall(rf"[:;] (\d+) {words}", runs)]
    said.append(("without", sum(map(int, re.findall(r"(\d+) without a score, ", runs)))))
    said += [("without", int(number)) for number in re.findall(r"; (\d+) have no score", text)]
    for name, number in said:
        if number != total[name]:
            yield f"{number} {name}, the tables have {total[name]}"
    of_arm = r"[Oo]f the runs of (\S+), (\d+) of the (\d+) that count"
    for name, failed, of in re.findall(of_arm, text) if report.texts.is_single else ():
        arm = report.arms[name]
        if (int(failed), of) != (sum(_kinds(arm.ends["failed"]).values()), arm.ends["count"]):
            yield f"{name}: {failed} of {of} failed, the table has {arm.ends['failed']} of {arm.ends['count']}"
    # What was claimed of an earlier plan is true of that.
    own = re.sub(of_arm, "", text) if report.texts.is_single else report.prose + runs
    of_all = r"(\d+) of the (\d+) that count failed by their own doing(?: \(([^)]*)\))?"
    for failed, of, listed in re.findall(of_all, own):
        if (int(failed), int(of)) != (total["failed"], total["count"]) or (listed and _kinds(listed) != kinds):
            yield f"{failed} of the {of} failed ({listed}), the tables have {total['failed']} of {total['count']}"


def _named(of: Mapping[str, int]) -> dict[str, int]:
    return {"again": of["trained again"], "without": of["without a score"]}


def _check_means(report: Report) -> Iterator[str]:
    text = f"{report.answer} {' '.join(report.texts.verdicts)}"
    for arm in report.arms.values():
        if arm.values and abs(float(arm.row["after"]) - fmean(arm.values)) > STEP:
            yield f"{arm.name}: mean {arm.row['after']}, its runs have {fmean(arm.values):.4f}"
        said = re.findall(rf"{arm.name}: mean (\S+?),", text)
        said += re.findall(
            rf"{arm.name}(?: is best in the median pair of runs:| has the best mean of \d+ arms,) ({NUMBER})", text
        )
        said += re.findall(rf"baseline {arm.name} \(mean ({NUMBER})\)", text)
        if report.texts.is_single:
            said += re.findall(rf"{arm.name} has a mean score of ({NUMBER}) after", report.text)
            said += re.findall(rf"{arm.name} has the best mean score, ({NUMBER})", report.text)
        if wrong := [each for each in said if each != arm.row["after"]]:
            yield f"{arm.name}: mean {arm.row['after']} and {wrong}"
    for number, runs in re.findall(r"has the best mean of \d+ arms, (\S+) over (\d+) run", text):
        if not any(arm.row["after"] == number and len(arm.values) == int(runs) for arm in report.arms.values()):
            yield f"no arm has a mean of {number} over {runs} runs"


def _check_ranking(report: Report) -> Iterator[str]:
    ranked = sorted(
        (arm for arm in report.arms.values() if arm.row["rank"] != "–"), key=lambda arm: int(arm.row["rank"])
    )
    is_minimized = "(minimize)" in report["Arms"].text
    means = [float(arm.row["after"]) * (-1 if is_minimized else 1) for arm in ranked]
    if means != sorted(means, reverse=True):
        yield f"ranks against means {means}"
    lead = re.match(r"(\S+) (?:is best|has the best mean)", report.answer)
    if lead and (not ranked or means[[arm.name for arm in ranked].index(lead[1])] < means[0] - STEP):
        yield f"{lead[1]} is said to be best"
    if len(ranked) > 2 and not re.match(
        r"(The study failed|No answer|Of \d+ explored arms)|.*? (is best|has the best|share the best)", report.answer
    ):
        yield "the answer to which is best does not begin with what is best"


def _check_differences(report: Report) -> Iterator[str]:
    for arm in report.arms.values():
        row = arm.comparison
        if not row:
            continue
        parts = [row["difference"], row["interval"], _p(row["p corrected"])]
        if _is(row["mean"]) and not _is_sum(row["difference"], row["mean"], f"-{row['baseline']}"):
            yield f"{arm.name}: {row['mean']} less {row['baseline']} is not {row['difference']}"
        line = next((each for each in report.texts.verdicts if each.startswith(f"{arm.name}: ")), "")
        if f"({', '.join(parts)})" not in line:
            yield f"{arm.name}: the terminal says {line!r}, the table {parts}"
    rows = [arm.comparison for arm in report.arms.values() if arm.comparison]
    for match in EFFECT.finditer(report.answer):
        if not any(_is_row(match, row) for row in rows):
            yield f"no row of the comparisons has {match[0]!r}"
        if match["agent"] and not _is_sum(match["d"], match["agent"], match["training"]):
            yield f"{match['agent']} and {match['training']} are not {match['d']}"


EFFECT = re.compile(
    rf"(?P<d>{NUMBER}) \(\S+ % interval (?P<i>n/a|{NUMBER} to {NUMBER}), (?P<p>p [<=] [\d.]+|no p value)[^()]*\)"
    rf"(?:, a mean of (?P<own>{NUMBER}) against (?P<other>{NUMBER}))?"
    rf"(?:, of which (?P<agent>{NUMBER}) by its agent on the base weights and (?P<training>{NUMBER}) by training)?"
)


def _is_sum(whole: str, *parts: str) -> bool:
    return abs(sum(float(part.replace("--", "")) for part in parts) - float(whole)) <= 2 * STEP


def _is_row(match: re.Match[str], row: Row) -> bool:
    pairs = {"d": row["difference"], "i": row["interval"], "p": _p(row["p corrected"]), "own": row["mean"]}
    pairs |= {"other": row["baseline"], "agent": row["by its agent"], "training": row["by training"]}
    return all(match[name] in (None, value) for name, value in pairs.items())


def _check_verdicts(report: Report) -> Iterator[str]:
    arms = report.arms.values()
    for arm in arms:
        if arm.comparison and arm.comparison["verdict"] != arm.verdict:
            yield f"{arm.name}: {arm.verdict} and {arm.comparison['verdict']}"
        line = next((each for each in report.texts.verdicts if each.startswith(f"{arm.name}: ")), "")
        word = {"baseline": "the baseline", "–": "not compared"}.get(arm.verdict, arm.verdict)
        if f", {word}" not in line:
            yield f"{arm.name}: {arm.verdict}, the terminal says {line!r}"
        if (arm.verdict == "disqualified") != (arm.row["rank"] == "–") and arm.values:
            yield f"{arm.name}: {arm.verdict}, rank {arm.row['rank']}"
    listed = re.search(r"p below \S+?\): (.*?)\.(?: |$)", report.answer)
    verdicts = Counter(arm.verdict for arm in arms if arm.comparison)
    if listed and _kinds(listed[1]) != verdicts:
        yield f"the answer counts {listed[1]}, the table {verdicts}"


def _check_advice(report: Report) -> Iterator[str]:
    """What is called better, recommended and open against the verdicts."""
    arms = report.arms.values()
    kept = {arm.name for arm in arms if arm.verdict == "keep"}
    advice = report["Recommendation"].text
    for name in re.findall(r"\bUse (\S+):", advice):
        if name not in kept:
            yield f"{name} is recommended and not kept"
    better = re.findall(r"(\S+) (?:is better|was better|is kept against) ", report.answer)
    lead = re.match(r"(\S+) (?:is best|has the best mean)", report.answer)
    for name in better:
        is_denied = re.search(rf"(Whether |Not so: .*|Not decided: .*|way round than this: .*){name} ", report.answer)
        if (lead[1] if name == "It" and lead else name) not in kept and not is_denied:
            yield f"{name} is called better and not kept"
    if kept and re.search(r"No arm is shown to be better|no arm was shown to be better", f"{report.answer} {advice}"):
        yield f"{kept} kept, and no arm is shown to be better"
    if kept and not better:
        yield f"{kept} kept, which the answer does not say"
    undecided = re.search(r"Not decided: (.*?)\.", advice)
    names = set(re.findall(r"\ba\d\b", undecided[1])) if undecided else set()
    if names != {arm.name for arm in arms if arm.verdict == "inconclusive"}:
        yield f"{names} are not decided, by the table others are"


REASON = r"not decided|undecided|no better|worse|ruled|contradicts|do not come|not compared|plan"


def _check_recommended(report: Report) -> Iterator[str]:
    """An arm is recommended with the best mean, or beside the reason why the one with that mean is not."""
    arms = report.arms.values()
    ranked = sorted((arm for arm in arms if arm.row["rank"] != "–"), key=lambda arm: int(arm.row["rank"]))
    is_any_open = any(arm.verdict == "inconclusive" for arm in arms)
    advice = report["Recommendation"].text
    for sentence in re.split(r"(?<=\.) (?=[A-Z])", advice):
        found = re.match(r"(?:Use|Stay with|Choose by cost between) (a\d)\b", sentence)
        if found is None or not ranked:
            continue
        best = ranked[0]
        if report.arms[found[1]].row["after"] == best.row["after"] or found[1] == best.name:
            continue
        if not re.search(rf"\b{best.name}\b.*(?:{REASON})", sentence.removeprefix(found[0])):
            yield f"{found[1]} is recommended, {best.name} has the better mean, and the sentence does not say why"
    if is_any_open and re.search(r"\bStay with ", advice):
        yield "the advice is to stay, and an arm is not decided"
    is_any_compared = any(arm.comparison and _is(arm.comparison["difference"]) for arm in arms)
    if is_any_open and is_any_compared and not re.search(r"\bUse |\bUndecided: ", advice):
        yield "an arm is not decided, and the advice is neither to use one nor that it is undecided"


def _check_precision(report: Report) -> Iterator[str]:
    text = report.text
    if found := re.search(r"\bp = 0(?:\.0+)?(?![.\d])", text):
        yield f"says {found[0]}"
    if found := re.search(
        r"(better|worse) than \S+?(?: in the median pair of runs)?(?: by|:) [+-]?0\.0+(?![\d])", text
    ):
        yield f"says {found[0]}"


def _check_test(report: Report) -> Iterator[str]:
    rows = report["Test split"].table("mean")
    names = {row["arm"] for row in rows}
    has_weights = {row["arm"] for row in report.trainings if row["status"] == "finished"}
    baseline = {name for name in has_weights if report.arms[name].verdict == "baseline"}
    if rows and (len(rows) < 2 or not baseline <= names):
        yield f"the test split has {names}"
    if out := [name for name in names if report.arms[name].verdict == "disqualified"]:
        yield f"the test split has {out}"
    said = re.search(r"took no part in any choice: (.*?)\.(?: |$)", report["What was done"].text)
    means = {tuple(each.split(" ")) for each in said[1].split(", ")} if said else set()
    if means != {(row["arm"], row["mean"]) for row in rows}:
        yield f"what was done has {means}, the test split {rows}"
    contradicted = re.findall(r"(\S+) against \S+ on it: .*?contradicts an improvement", report["Test split"].text)
    if bool(contradicted) != ("No improvement is shown" in report.answer):
        yield f"the test split contradicts {contradicted}, the answer says {report.answer!r}"
    if contradicted and re.search(rf"\bUse {contradicted[0]}:", report["Recommendation"].text):
        yield f"{contradicted} is recommended"


CHECKS: Sequence[Callable[[Report], Iterator[str]]] = (
    _check_counts,
    _check_means,
    _check_ranking,
    _check_differences,
    _check_verdicts,
    _check_advice,
    _check_recommended,
    _check_precision,
    _check_test,
)


def _own_words(line: str) -> str:
    """A line without what a planner wrote or claims."""
    return re.sub(r"unchecked: .*|False: .*?(?=On record:)", "", line)


def _is(cell: str) -> bool:
    return re.fullmatch(NUMBER, cell) is not None


def _p(cell: str) -> str:
    return "no p value" if cell == "n/a" else f"p < {cell[1:]}" if cell.startswith("<") else f"p = {cell}"


def _kinds(text: str) -> Counter[str]:
    """Counts by kind of a list such as `1 collapse, 2 no better`."""
    return Counter({kind: int(number) for number, kind in re.findall(r"(\d+) ([a-z_ ]+)", text)})
