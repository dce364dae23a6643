"""The held-out conversations of a study, the worst first: each with its messages and its reward.

    python show_episodes.py [--home runs] [--study ID] [--arm TEXT] [--run ID] [--limit 5] [--best] [--json]

The script reads the database and changes nothing. Exit codes: 0 done, 1 the database cannot be read, 2 wrong usage,
3 there is no such database, study, run or episode.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from experiments_db import RecordNotFound, StoreError, open_store


def main() -> None:
    options = parse()
    try:
        found = episodes(options)
    except RecordNotFound as error:
        sys.exit(fail(str(error)))
    except StoreError as error:
        print(f"show_episodes: {error}", file=sys.stderr)
        sys.exit(1)
    if not found:
        sys.exit(fail("no held-out episode is recorded for these options: try fewer of them"))
    if options.json:
        print(json.dumps(found))
        return
    for episode in found:
        print(f"{episode['arm']}  seed {episode['seed']}  {episode['task_id']}  reward {episode['reward']}")
        for message in episode["messages"]:
            print(f"  {message['role']:10} {message.get('content') or message.get('tool_calls')}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Held-out conversations of a study, the worst first.")
    parser.add_argument("--home", type=Path, default=Path(os.environ.get("SWARM_HOME") or "runs"))
    parser.add_argument("--study", help="id of the study (default: the newest)")
    parser.add_argument("--arm", help="only arms whose name contains this text")
    parser.add_argument("--run", help="id of one run")
    parser.add_argument("--limit", type=int, default=5)
    parser.add_argument("--best", action="store_true", help="show the best first")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def episodes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the chosen episodes with their messages. Raises RecordNotFound if there is no such study."""
    with open_store(options.home / "research.db", read_only=True) as store:
        study = options.study or next((each.id for each in store.list_studies(limit=1)), None)
        if study is None:
            raise RecordNotFound("there is no study yet: `researcher start` starts one")
        store.get_study(study)
        arms = {arm.id: arm.name for arm in store.list_experiments(study)}
        runs = [run for run in store.list_runs(study_id=study) if options.run in (None, run.id)]
        runs = [run for run in runs if options.arm is None or options.arm in arms[run.experiment_id]]
        # Step 0 is the base weights, before any training.
        kept = [
            (run, each) for run in runs for each in store.list_episodes(run.id, kind="eval", limit=None) if each.step
        ]
        kept.sort(key=lambda pair: pair[1].reward or 0.0, reverse=options.best)
        return [
            {
                "arm": arms[run.experiment_id],
                "run_id": run.id,
                "seed": run.seed,
                "task_id": each.task_id,
                "reward": each.reward,
                "messages": store.get_episode(run.id, each.episode_id).messages,
            }
            for run, each in kept[: options.limit]
        ]


def fail(reason: str) -> int:
    print(f"show_episodes: {reason}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    main()
