"""Receipts: a ledger finds by them what an older copy of it lacks, and nobody else can make one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm.ledger import Ledger, RecordLoss
from swarm.schemas import Receipt, newest_receipt
from swarm.server.backup import back_up, restore
from swarm.server.home import open_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def live(home: Path, make_script: Any) -> Callable[..., str]:
    """Opens the ledger for so many episodes, and returns the receipt of the last."""

    def run(episodes: int, name: str, place: Path = home) -> str:
        with closing(open_home(place)) as opened:
            script = make_script(opened)
            if script.wait(opened.latest_job()) is None:
                script.wait(opened.record_job({}, {}))
            script.complete(*(f"{name}-{number}" for number in range(episodes)))
            return opened.receipt()

    return run


def put_back(copy: Path, home: Path) -> None:
    shutil.rmtree(home)
    shutil.copytree(copy, home)


def loss(home: Path, receipt: str) -> RecordLoss | None:
    with closing(open_home(home)) as opened:
        return opened.find_loss(receipt)


def test_restarts_and_more_episodes_are_no_loss(home: Path, live: Callable[..., str]) -> None:
    receipts = [live(episodes, f"life-{episodes}") for episodes in (3, 0, 2, 1)]
    with closing(open_home(home)) as opened:
        assert [opened.find_loss(each) for each in [*receipts, opened.receipt()]] == [None] * 5


def test_an_older_copy_lacks_what_came_after_it(home: Path, tmp_path: Path, live: Callable[..., str]) -> None:
    live(4, "before")
    shutil.copytree(home, tmp_path / "copy")
    receipt = live(6, "after")
    put_back(tmp_path / "copy", home)
    assert loss(home, receipt) == RecordLoss(4, 6)


def test_a_copy_that_went_on_for_long_is_still_known_by_its_openings(
    home: Path, tmp_path: Path, live: Callable[..., str]
) -> None:
    live(4, "before")
    shutil.copytree(home, tmp_path / "copy")
    live(3, "lost")
    receipt = live(3, "lost later")
    put_back(tmp_path / "copy", home)
    live(5, "again")
    live(7, "more than before")
    assert loss(home, receipt) == RecordLoss(4, 6)


def test_a_copy_of_a_running_ledger_lacks_the_rest_of_that_opening(
    home: Path, tmp_path: Path, make_script: Any
) -> None:
    with closing(open_home(home)) as opened:
        script = make_script(opened)
        script.wait(opened.record_job({}, {}))
        script.complete(*(f"first-{number}" for number in range(4)))
        shutil.copytree(home, tmp_path / "copy", ignore=shutil.ignore_patterns("*.lock", "*-shm"))
        script.complete(*(f"second-{number}" for number in range(6)))
        receipt = opened.receipt()
    put_back(tmp_path / "copy", home)
    assert loss(home, receipt) == RecordLoss(4, 6)


def test_a_copy_without_its_control_file_knows_the_receipts_of_its_origin(
    home: Path, tmp_path: Path, live: Callable[..., str]
) -> None:
    live(4, "before")
    (tmp_path / "copy").mkdir()
    shutil.copy(home / "ledger.db", tmp_path / "copy")
    receipt = live(6, "after")
    own = live(2, "own", tmp_path / "copy")
    assert loss(tmp_path / "copy", receipt) == RecordLoss(4, 6)
    assert loss(home, own) is None, "the origin lacks nothing of its own"


def test_a_restored_backup_has_a_history_of_its_own(home: Path, tmp_path: Path, live: Callable[..., str]) -> None:
    live(4, "before")
    back_up(home, tmp_path / "backup")
    receipt = live(6, "after")
    restore(tmp_path / "backup", home)
    assert loss(home, receipt) is None, "the command has named what it replaced"
    own = live(1, "own")
    assert loss(home, own) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda known: replace(known, acknowledged=10**15),
        lambda known: replace(known, opening="f" * 24),
        lambda known: replace(known, seal=""),
        lambda known: replace(known, acknowledged=10**15).sealed(""),
        lambda known: replace(known, acknowledged=10**15).sealed(known.seal),
        lambda _: Receipt("a", "b", 10**15, "é"),
        lambda known: f"{known}.{known}",
        lambda known: f"{known.ledger_id}.{known.opening}.-1.{known.seal}",
        lambda known: f"{known.ledger_id}.{known.opening}.{'9' * 5000}.{known.seal}",
        lambda known: f"{known.ledger_id}.{known.opening}.\N{SUPERSCRIPT TWO}.{known.seal}",
        lambda _: "",
    ],
)
def test_a_receipt_that_the_ledger_has_not_given_proves_nothing(
    change: Callable[[Receipt], object], home: Path, live: Callable[..., str]
) -> None:
    known = Receipt.parse(live(3, "life"))
    assert known is not None and loss(home, str(change(known))) is None


def test_the_receipt_of_another_ledger_proves_nothing(home: Path, tmp_path: Path, live: Callable[..., str]) -> None:
    live(1, "here")
    assert loss(home, live(9, "there", tmp_path / "other")) is None


def test_a_client_keeps_the_newest_receipt_in_whatever_order_they_come(ledger: Ledger) -> None:
    known = Receipt.parse(ledger.receipt())
    assert known is not None
    more, later = replace(known, acknowledged=7), replace(known, opening="f", acknowledged=1)
    for first, second, newest in [
        (None, str(known), str(known)),
        (str(known), None, str(known)),
        (str(known), str(more), str(more)),
        (str(more), str(known), str(more)),
        (str(more), str(later), str(later)),
        (str(later), str(more), str(later)),
        (str(more), "of.another.1.ledger", "of.another.1.ledger"),
    ]:
        assert newest_receipt(first, second) == newest
