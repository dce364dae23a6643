"""The commands that a user can send to a server: start, stop, another policy, another setting of the job.

A command is shown as it will be sent, and sent once the user confirms it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st
import yaml

from ui import episode_view, formats
from ui.servers.calls import ServerAnswer, ServerCallFailed, ServerRequest, call_server
from ui.servers.status import ShownStatus

STOPPED = frozenset({"OFFLINE", "FAILED"})
STOP_RULES = (
    "enough_episodes", "enough_tasks", "enough_non_constant_tasks", "any_client_agrees", "all_clients_agree"
)  # fmt: skip
NUMBERS = {"batch_size": 1, "num_repeat": 1, "min_group": 1, "max_staleness": 0}
"""The numbers of a policy that the form offers, with the smallest value of each."""
PROPOSED, OUTCOME = "proposed command", "outcome of the command"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A request that changes a server at `address`, and what it does in words."""

    address: str
    title: str
    effect: str
    request: ServerRequest


def show_commands(address: str, token: str, status: ShownStatus) -> None:
    """Offer the commands that the state of the server allows, and show the one that waits to be confirmed."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if status.state in STOPPED:
            _offer(_start(address), icon=":material/play_arrow:")
        else:
            _offer(_stop(address), icon=":material/stop:")
            with st.popover("Change the policy", icon=":material/tune:", disabled=status.policy is None):
                _offer_policy(address, status.policy or {})
            with st.popover("Change the job", icon=":material/edit:"):
                _offer_job(address, status)
    _confirm(address, token)
    _show_outcome(address)


def _start(address: str) -> ServerCommand:
    effect = "The engine boots, and the job goes on where it was."
    return ServerCommand(address, "Start", effect, ServerRequest("POST", "/v1/swarm/engine/start", {"resume": True}))


def _stop(address: str) -> ServerCommand:
    effect = "Running episodes are aborted and the model is freed. What was acknowledged is kept, and so is the job."
    return ServerCommand(address, "Stop", effect, ServerRequest("POST", "/v1/swarm/engine/stop"))


def _offer(command: ServerCommand, *, icon: str, disabled: bool = False) -> None:
    key = f"{command.title} {command.address}"
    st.button(command.title, icon=icon, disabled=disabled, key=key, on_click=_propose, args=(command,))


def _propose(command: ServerCommand) -> None:
    st.session_state[PROPOSED] = command
    st.session_state.pop(OUTCOME, None)


def _offer_policy(address: str, policy: Mapping[str, Any]) -> None:
    """Offer the settings of the policy. Only those that differ are sent."""
    present = {name: policy[name] for name in NUMBERS if isinstance(policy.get(name), int)}
    chosen: dict[str, Any] = {
        name: st.number_input(name, min_value=NUMBERS[name], value=value, step=1, key=f"{name} {address}")
        for name, value in present.items()
    }
    rule = policy.get("stop_rule")
    if rule in STOP_RULES:
        present["stop_rule"] = rule
        chosen["stop_rule"] = st.selectbox("stop_rule", STOP_RULES, index=STOP_RULES.index(rule), key=f"rule {address}")
    changed = {name: value for name, value in chosen.items() if value != present[name]}
    request = ServerRequest("PATCH", "/v1/swarm/batch/policy", changed)
    effect = "The policy holds from the next batch on."
    _offer(ServerCommand(address, "Review the policy", effect, request), icon=":material/tune:", disabled=not changed)


def _offer_job(address: str, status: ShownStatus) -> None:
    """Offer any setting of the job, one to a line."""
    text = st.text_area("Settings", placeholder="lr=3e-4\ntemperature=0.8", key=f"settings {address}")
    at_step = st.number_input("From step", min_value=1, value=None, placeholder="first possible", key=f"at {address}")
    try:
        settings = parse_settings(text)
    except ValueError as error:
        st.caption(f":red[{formats.plain(str(error))}]")
        settings = {}
    body: dict[str, Any] = {"settings": settings, "expected_revision": status.revision}
    if at_step is not None:
        body["at_step"] = at_step
    effect = "The settings hold from a step on. The server says which one, and refuses what cannot change."
    command = ServerCommand(address, "Review the settings", effect, ServerRequest("PATCH", "/v1/swarm/job", body))
    _offer(command, icon=":material/edit:", disabled=not settings)


def parse_settings(text: str) -> dict[str, Any]:
    """Return settings that are written NAME=VALUE, one to a line. Raises ValueError for another line.

    Values are read as in a job.yaml. In addition, words like 3e-4 are numbers.
    """
    settings: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or not equals or not value:
            raise ValueError(f"{line}: must be NAME=VALUE, such as lr=3e-4")
        try:
            settings[name] = yaml.safe_load(value)
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"{line}: the value is not valid YAML") from error
        if isinstance(settings[name], str):
            settings[name] = _number_or_text(settings[name])
    return settings


def _number_or_text(word: str) -> float | str:
    # YAML takes 3e-4, without a point, for text.
    try:
        return float(word) if word[:1] in "-+.0123456789" else word
    except ValueError:
        return word


def _confirm(address: str, token: str) -> None:
    """Show the command that waits to be confirmed, if it is one of this server, and send it on confirmation."""
    command = st.session_state.get(PROPOSED)
    if not isinstance(command, ServerCommand) or command.address != address:
        return
    with st.container(border=True):
        st.markdown(
            f"**{command.title.removeprefix('Review ').capitalize()}: is this what you want?** {command.effect}"
        )
        sent = "" if command.request.body is None else f"\n{episode_view.show_json(command.request.body)}"
        st.code(f"{command.request.method} {address}{command.request.path}{sent}", language=None, wrap_lines=True)
        with st.container(horizontal=True):
            st.button(
                "Send",
                icon=":material/send:",
                key="send command",
                on_click=_send,
                args=(command, token),
            )
            st.button("Cancel", key="cancel command", on_click=_drop)


def _drop() -> None:
    st.session_state.pop(PROPOSED, None)


def _send(command: ServerCommand, token: str) -> None:
    _drop()
    answer: ServerAnswer | str
    try:
        answer = call_server(command.address, command.request, token)
    except ServerCallFailed as failure:
        answer = f"{failure} The command may have been carried out: look at the state."
    st.session_state[OUTCOME] = (command, answer)


def _show_outcome(address: str) -> None:
    command, answer = st.session_state.get(OUTCOME, (None, None))
    if command is None or command.address != address:
        return
    called = f"{command.request.method} {command.request.path}"
    if isinstance(answer, str):
        st.error(f"{formats.name(called)}: {formats.plain(answer)}", icon=":material/cloud_off:")
        return
    if answer.is_success:
        st.success(f"{formats.name(called)}: the server answered {answer.status}.", icon=":material/check_circle:")
    else:
        said = formats.plain(formats.shortened(answer.message, 1000))
        st.error(f"{formats.name(called)}: the server answered {answer.status}. {said}", icon=":material/block:")
    with st.expander("The answer"):
        episode_view.show_long_text(episode_view.show_json(answer.document))
