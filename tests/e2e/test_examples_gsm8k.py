"""The example for verl: its client on the local engine, for nothing in it depends on who trains."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import httpx
import pytest
from example_programs import EXAMPLES, changed_job, run_example

from swarm import TrainJob

EXAMPLE = EXAMPLES / "gsm8k_verl"


def write_questions(path: Path, count: int) -> Path:
    records = [{"question": f"What is {n} + 1?", "answer": f"One more than {n}.\n#### {n + 1:,}"} for n in range(count)]
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return path


def test_the_job_changes_its_engine_by_one_line_but_for_the_count_of_gpus(tmp_path: Path) -> None:
    text = (EXAMPLE / "job.yaml").read_text()
    job = TrainJob.build_job_from_yaml(EXAMPLE / "job.yaml")
    assert (job.engine, job.n_gpu) == ("verl", 4)
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("n_gpu: 4", "n_gpu: 1").replace("engine: verl", "engine: local", 1))
    assert TrainJob.build_job_from_yaml(path).engine == "local"


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("4 and 5 make 9.\n#### 1,009", True),
        ("#### 1008 #### 1009.0", True),
        ("It is 1009", False),
        ("#### none", False),
        ("#### 1008", False),
    ],
)
def test_the_number_behind_the_mark_is_what_counts(reply: str, right: bool) -> None:
    assert runpy.run_path(str(EXAMPLE / "client.py"))["is_right"](reply, "1,009") is right


def test_a_model_by_path_is_trained_on_questions_by_path(swarm_process: str, tmp_path: Path) -> None:
    left_out = dict.fromkeys(("n_gpu", "verl", "max_model_len"))
    small = {"batch_size": 2, "num_repeat": 4, "total_steps": 2, "max_response_length": 8, "lr": 1e-4, "save_freq": 0}
    job = changed_job(tmp_path, "gsm8k_verl", engine="local", model="nano", **left_out, **small)
    train, test = write_questions(tmp_path / "train.jsonl", 6), write_questions(tmp_path / "test.jsonl", 5)
    words = ("--url", swarm_process, "--job", job, "--train", str(train), "--test", str(test), "--workers", "8")
    output = run_example("gsm8k_verl", *words)
    assert re.findall(r"test accuracy (before|after 2 steps): [\d.]+ \(n=5, failed 0\)", output) == [
        "before",
        "after 2 steps",
    ]
    assert httpx.get(f"{swarm_process}/v1/swarm/status", timeout=60).json()["step"] == 2
