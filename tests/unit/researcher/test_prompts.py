"""Prompts are complete: every variable is given, none is made up, and what is filled in is never filled in again."""

from __future__ import annotations

import ast

import pytest

from prompts import PromptError, load, names


def test_client_template_is_a_program_for_the_task():
    code = load("client", task="reverse")
    ast.parse(code)
    assert 'task_family("reverse")' in code


def test_missing_variable_is_named():
    with pytest.raises(PromptError, match="needs task"):
        load("client")


def test_unknown_variable_is_named():
    with pytest.raises(PromptError, match="no variable tsak"):
        load("client", task="reverse", tsak="x")


def test_unknown_prompt_lists_those_there_are():
    with pytest.raises(PromptError, match="there are: client, "):
        load("no-such-prompt")


@pytest.mark.parametrize("name", ["../pyproject", "__init__", "client.py.template", ""])
def test_a_name_is_no_path(name):
    with pytest.raises(PromptError):
        load(name)


def test_a_value_with_dollar_signs_stays_as_it_is():
    assert "$task ${x} $$" in load("client", task="$task ${x} $$")


def test_there_is_a_prompt_for_every_question_to_a_model():
    assert set(names()) >= {"client", "system", "frame", "plan", "write_client", "repair_client", "interpret", "decide"}
