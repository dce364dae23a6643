"""Commands of studies as the command line reads them, up to the charter: nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from researcher import cli
from researcher.charter import Charter
from researcher.errors import TopicInvalid
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import StudySettings

_END = "this is as far as it goes"


def frame_command(words: Sequence[str]) -> tuple[Charter | None, str]:
    """Return the charter of `researcher start ...`, None if the command refuses it, and what stands in its stderr."""
    asked: list[Charter] = []

    def check(topic: str, settings: StudySettings) -> tuple[str, ...]:
        asked.append(RulesPlanner().frame(settings.request(topic)))
        raise TopicInvalid(_END)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("researcher.loop.settings_check.check_study", check)
        patch.delenv("OPENAI_API_KEY", raising=False)
        done = CliRunner().invoke(cli.app, list(words)[1:])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit), (words, done.stderr)
    assert bool(asked) == (_END in done.stderr), done.stderr
    return (asked or [None])[0], done.stderr
