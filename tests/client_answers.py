"""Answers of a server to a client, as its control API sends them."""

from __future__ import annotations

from typing import Any

BEGUN = {
    "episode_id": "e1",
    "base_url": "http://10.0.0.7:10086/v1",
    "api_key": "secret",
    "model": "nano",
    "weight_version": 3,
    "deadline_s": 1800.0,
}
ENDED = {"episode_id": "e1", "state": "completed", "outcome": None, "batch_id": None, "replayed": False}
VIEW = {
    "episode_id": "e1", "episode_type": "train", "state": "completed", "client_id": "c", "task_id": "t",
    "data_source": "math", "reward": 0.5, "is_success": None, "turn_rewards": [0.1], "outcome": None, "turns": 1,
    "begun_at": 1.0, "last_seen_at": 2.0, "ended_at": 3.0, "weight_versions": [0], "batch_id": None,
}  # fmt: skip


def status_of(state: str = "ROLLING", **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "server_version": "0", "state": state, "reason": None, "project_name": None, "experiment_name": None,
        "model": None, "step": 0, "total_steps": None, "weight_version": 0, "pool": None, "policy": None, "clients": [],
        "running": [], "warnings": [], "recoveries": 0, "failures": {}, "calls": {}, "ignored_fields": {},
        "tokens_per_second": 0.0, "last_metrics": {}, "started_at": 0.0, "now": 0.0,
    }  # fmt: skip
    return {**base, **changes}
