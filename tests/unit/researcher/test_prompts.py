"""Prompts are complete: every variable is given, none is made up, and what is filled in is never filled in again."""

from __future__ import annotations

import pytest

from prompts import PromptError, load
from swarm.program import is_program


def test_the_plain_program_is_a_program():
    assert is_program(load("program"))


def test_missing_variable_is_named():
    with pytest.raises(PromptError, match="needs example"):
        load("program_contract")


def test_unknown_variable_is_named():
    with pytest.raises(PromptError, match="no variable tsak"):
        load("program_contract", example="x", tsak="x")


def test_unknown_prompt_lists_those_there_are():
    with pytest.raises(PromptError, match="there are: arms, decide, "):
        load("no-such-prompt")


@pytest.mark.parametrize("name", ["../pyproject", "__init__", "program.py.template", ""])
def test_a_name_is_no_path(name):
    with pytest.raises(PromptError):
        load(name)


def test_a_value_with_dollar_signs_stays_as_it_is():
    assert "$task ${x} $$" in load("program_contract", example="$task ${x} $$")
