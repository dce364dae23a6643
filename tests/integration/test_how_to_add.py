"""What docs/architecture.md says of how to add something: each addition is a patch of few files, and works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDITIONS = ROOT / "tests" / "additions"
PACKAGES = ("swarm", "researcher", "experiments_db", "prompts")


@dataclass(frozen=True)
class Addition:
    """New files from a folder of tests/additions, and replacements of text in files of the product.

    `check` is a program that fails without the addition.
    """

    name: str
    replaced: tuple[tuple[str, str, str], ...]
    check: str
    most_files: int = 3

    @property
    def new(self) -> list[Path]:
        folder = ADDITIONS / self.name
        return [path.relative_to(folder) for path in folder.rglob("*.py")]

    @property
    def old(self) -> set[str]:
        return {path for path, _, _ in self.replaced}

    def apply(self, tree: Path) -> None:
        for path in self.new:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ADDITIONS / self.name / path, tree / path)
        for path, old, new in self.replaced:
            text = (tree / path).read_text()
            assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
            (tree / path).write_text(text.replace(old, new))


ESTIMATOR = Addition(
    "estimator",
    (
        (
            "swarm/estimators.py",
            '        "opo": Estimator(),\n',
            '"opo": Estimator(), "centred": Estimator("centred"),\n',
        ),
    ),
    """
import numpy as np
from swarm.job import build_job
from swarm.trainer.advantages import compute_advantages
from swarm.trainer.token_rows import Row, ScoredSample
ids, ones = np.arange(3), np.ones(2, np.float32)
rows = [
    Row(f"e{number}", 0, reward, None, (ScoredSample(ids, ids[1:], ids[:-1], ones),), -ones, ids[:2], ids[:2])
    for number, reward in enumerate((0.0, 1.0))
]
assert compute_advantages(rows, build_job({"algorithm": "centred"})).tolist() == [[-0.5, -0.5], [0.5, 0.5]]
""",
)
STOP_RULE = Addition(
    "stop_rule",
    (
        (
            "swarm/schemas/base.py",
            '        "any_client_agrees": ',
            '        "enough_mixed_episodes": StopRuleTraits("", unit="episodes", needs_contrast=True),\n'
            '        "any_client_agrees": ',
        ),
    ),
    """
from swarm.batch.policy import BatchPolicy
from swarm.job import build_job
from swarm.schemas import UpdateBatchPolicyRequest
job = build_job({"stop_rule": "enough_mixed_episodes"})
assert BatchPolicy.of(job).rule.needs_contrast
assert UpdateBatchPolicyRequest(stop_rule="enough_mixed_episodes").stop_rule == job.stop_rule
""",
)
GUARD_RULE = Addition(
    "guard_rule",
    (
        ("swarm/guard.py", "    rules = (_not_finite, ", "    rules = (_not_finite, _too_good, "),
        (
            "swarm/guard.py",
            "def _not_finite(",
            """def _too_good(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    last = rows[-1]
    is_so = (last.metrics.get(REWARD) or 0.0) > 1000
    return TrainingFault("too_good", "The reward is too good to be true.", last.step, None) if is_so else None


def _not_finite(""",
        ),
    ),
    """
from swarm.guard import REWARD, MetricLimits, StepRow, find_fault
fault = find_fault([StepRow(1, {REWARD: 1e6})], MetricLimits())
assert fault is not None and fault.kind == "too_good"
""",
)
SINK = Addition(
    "sink",
    (
        (
            "pyproject.toml",
            '[project.entry-points."swarm.sinks"]\n',
            '[project.entry-points."swarm.sinks"]\nlines = "swarm.sinks.lines:open_lines"\n',
        ),
    ),
    """
from swarm.sinks import list_sinks, open_sink
assert "lines" in list_sinks()
assert not open_sink("lines", "runs").holds("key")
""",
)
METRIC = Addition(
    "metric_of_runs",
    (
        ("researcher/charter.py", '    WORST = "worst"\n', '    WORST = "worst"\n    HIGHEST = "highest"\n'),
        (
            "researcher/charter.py",
            "        return self in (JudgedBy.AREA, JudgedBy.STEPS_TO, JudgedBy.WORST)",
            "        return self in (JudgedBy.AREA, JudgedBy.STEPS_TO, JudgedBy.WORST, JudgedBy.HIGHEST)",
        ),
        (
            "researcher/charter.py",
            "            case JudgedBy.WORST:\n",
            '            case JudgedBy.HIGHEST:\n                return f"highest {self.metric} during training"\n'
            "            case JudgedBy.WORST:\n",
        ),
        (
            "researcher/record/scores.py",
            "        case JudgedBy.WORST:\n",
            "        case JudgedBy.HIGHEST:\n            found = lowest_of(curve, -charter.sign)\n"
            "        case JudgedBy.WORST:\n",
        ),
    ),
    """
from researcher.judge.learning_curves import ScoredStep
from researcher.record.scores import _judge_by
from researcher.study.settings import read_metric
from types import SimpleNamespace
judged_by, _ = read_metric("highest")
assert judged_by.needs_curve
curve = [ScoredStep(step, mean, 0.0) for step, mean in ((0, 0.1), (1, 0.9), (2, 0.4))]
charter = SimpleNamespace(judged_by=judged_by, sign=1)
assert _judge_by(charter, SimpleNamespace(mean=0.4), curve).value == 0.9
""",
)
MODEL_API = Addition(
    "model_api",
    (
        (
            "swarm/gateway/app.py",
            "from swarm.gateway.dialects.models import",
            "from swarm.gateway.dialects.generate.reply import GENERATE\nfrom swarm.gateway.dialects.models import",
        ),
        (
            "swarm/gateway/app.py",
            "for dialect in (CHAT, MESSAGES, COMPLETIONS, RESPONSES)",
            "for dialect in (CHAT, MESSAGES, COMPLETIONS, RESPONSES, GENERATE)",
        ),
        (
            "swarm/gateway/dialects/tables.py",
            "from swarm.gateway.dialects.responses.request import",
            "from swarm.gateway.dialects.generate.request import GENERATE_FIELDS, GenerateBody\n"
            "from swarm.gateway.dialects.responses.request import",
        ),
        (
            "swarm/gateway/dialects/tables.py",
            '        "/v1/messages": ',
            '        "/v1/generate": BodySchema("ours", GenerateBody, GENERATE_FIELDS, {"inputs": _TEXT}),\n'
            '        "/v1/messages": ',
        ),
    ),
    """
import json, subprocess, sys
import httpx
from swarm import SwarmClient, TrainJob
command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", "home", "--no-record", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        url = json.loads(server.stdout.readline())["url"]
        with SwarmClient(url, timeout=60) as client:
            client.auto_sync_train_config_and_start_engine(TrainJob(engine="fake"))
            episode, credentials = client.begin_episode()
            headers = {"authorization": f"Bearer {credentials.api_key}"}
            body = {"inputs": "hi", "max_new_tokens": 3, "colour": "red"}
            answer = httpx.post(f"{credentials.base_url}/generate", json=body, headers=headers, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["tokens"] == 3 and answer.headers["x-ignored-fields"] == "colour"
            assert len(client.episode(episode).turns) == 1
        assert "/v1/generate" in httpx.get(f"{url}/openapi.json", timeout=60).json()["paths"]
    finally:
        server.terminate()
""",
    most_files=5,
)


@pytest.mark.parametrize(
    "addition", [ESTIMATOR, STOP_RULE, GUARD_RULE, SINK, METRIC, MODEL_API], ids=lambda addition: addition.name
)
def test_an_addition_is_a_patch_of_few_files_and_works(addition: Addition, tmp_path: Path) -> None:
    assert len(addition.new) + len(addition.old) <= addition.most_files
    assert len(addition.old) <= 2
    tree = tmp_path / "tree"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    assert check(addition, tree).returncode != 0, "the check passes without the addition"
    addition.apply(tree)
    checked = check(addition, tree)
    assert checked.returncode == 0, checked.stderr


def check(addition: Addition, tree: Path) -> subprocess.CompletedProcess[str]:
    """The end of the check on the product in `tree`, whose entry points are those of its pyproject.toml."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    information = tree / "patched.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text("Name: patched\nVersion: 1\n")
    entries = project["entry-points"]["swarm.sinks"]
    lines = "".join(f"{name} = {target}\n" for name, target in entries.items() if name == "lines")
    (information / "entry_points.txt").write_text(f"[swarm.sinks]\n{lines}")
    return subprocess.run(
        [sys.executable, "-c", addition.check],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=120,
    )
