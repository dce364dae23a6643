"""The key of an episode as part of a base URL."""

from __future__ import annotations

import pytest

from swarm.client import Credentials


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("http://127.0.0.1:10086/v1", "http://127.0.0.1:10086/e/sk-swarm-k/v1"),
        ("https://lab.example/team/a/v1", "https://lab.example/team/a/e/sk-swarm-k/v1"),
    ],
)
def test_the_path_names_the_episode_behind_whatever_is_in_between(base_url: str, expected: str) -> None:
    credentials = Credentials("ep-1", base_url, "sk-swarm-k", "nano", 0, 60.0)
    assert credentials.path_base_url == expected


def test_a_printed_credential_shows_no_key() -> None:
    assert "sk-swarm-k" not in repr(Credentials("ep-1", "http://x/v1", "sk-swarm-k", "nano", 0, 60.0))
