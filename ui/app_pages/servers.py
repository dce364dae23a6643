"""The servers that recorded trainings or ran studies; the live state of one, and commands for who has its token.

An address is called only after a click on Connect: a database may come from somebody else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import pandas as pd
import streamlit as st

from experiments_db import RecordedServer
from ui import elements, formats, live, queries
from ui.servers import commands, state_view
from ui.servers.calls import READ_STATUS, UNAUTHORIZED, ServerAnswer, ServerCallFailed, call_server, check_address
from ui.servers.status import read_status

REFRESH = "3s"
USUAL = "http://127.0.0.1:10086"
SERVER = "server"
CONNECTION, FAILURE = "connected server", "failed connection"
OVER = frozenset({"COMPLETE", "REPLACED", "FAILED", "OFFLINE", "FINISHED", "STOPPED"})
# A server that works is recorded every ten seconds.
SILENT_S = 60.0


@dataclass(frozen=True, slots=True)
class LiveConnection:
    """The server that the user is connected to. Without `has_tokens` it takes everybody for its commander."""

    address: str
    has_tokens: bool


def id_of(server: RecordedServer) -> str:
    return server.home or f"{server.study_id} {server.url}"


def state_of(server: RecordedServer) -> str:
    """Return the last recorded state. A server that worked and has said nothing since is silent."""
    state = server.status.lower()
    is_silent = server.status.upper() not in OVER and time.time() - server.last_seen_at > SILENT_S
    return f"{state}, silent since" if is_silent else state


def table_of(servers: list[RecordedServer]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Server": formats.printable(server.home or f"of study {server.study_id}"),
                "Address": None if server.url is None else formats.printable(server.url),
                "State": state_of(server),
                "Last sign of life": f"{formats.duration(time.time() - server.last_seen_at)} ago",
                "Newest training": formats.printable(f"{server.project}/{server.experiment}".strip("/")),
                "Model": formats.printable(server.model),
                "Trainings": server.trainings,
                "Steps": server.steps,
            }
            for server in servers
        ]
    )


COLUMNS = {
    "Server": st.column_config.TextColumn(help="The folder with its ledger, or the study that started it"),
    "Address": st.column_config.TextColumn(help="Known for servers that a study used"),
    "State": st.column_config.TextColumn(help="As recorded last. Connect to see the present state."),
    "Trainings": st.column_config.NumberColumn(help="Recorded trainings, or runs of the study"),
    "Steps": st.column_config.NumberColumn(help="Of all these together", format="localized"),
}


def show_recorded() -> None:
    with elements.store_errors():
        servers = elements.store().list_servers()
        if not servers:
            st.info("No server has recorded anything here yet. Every server does, for example:", icon=":material/info:")
            st.code("swarm train --env reverse", language=None)
            return
        elements.choose_row(
            table_of(servers), [id_of(server) for server in servers], param=SERVER, alt="Servers", column_config=COLUMNS
        )
        chosen = next((server for server in servers if id_of(server) == st.query_params.get(SERVER)), None)
        if chosen is None:
            st.caption("Select a server to take over its address, or type another one below.")
        elif chosen.home is None:
            elements.link("study", "Open its study", icon=":material/account_tree:", study=chosen.study_id or "")
        else:
            training = next(
                (item for item in queries.list_trainings(elements.database()) if item.home == chosen.home), None
            )
            if training is not None:
                elements.link(
                    "training", "Open its newest training", icon=":material/monitoring:", training=training.id
                )


def choose_address() -> None:
    """Let the user connect to an address: the recorded one of the selected server, or another one."""
    servers = elements.store().list_servers()
    known = {id_of(server): server.url or "" for server in servers}
    asked = st.query_params.get(SERVER, "")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        key = f"address of {asked}"
        st.text_input("Address", known.get(asked, ""), placeholder=USUAL, key=key, max_chars=300, width=340)
        st.button("Connect", icon=":material/link:", on_click=connect, args=(key,))
    st.caption("Nothing is called before you connect. Then the address is asked for its state every 3 seconds.")
    if failure := st.session_state.get(FAILURE):
        st.warning(formats.plain(failure), icon=":material/cloud_off:")


def connect(key: str) -> None:
    """Call the address in a field for the first time, without a token."""
    st.session_state.pop(FAILURE, None)
    try:
        address = check_address(st.session_state[key] or USUAL)
        answer = call_server(address, READ_STATUS)
    except ServerCallFailed as failure:
        st.session_state[FAILURE] = str(failure)
    else:
        st.session_state[CONNECTION] = LiveConnection(address, has_tokens=answer.status == UNAUTHORIZED)


def disconnect() -> None:
    st.session_state.pop(CONNECTION, None)


def show_live(connection: LiveConnection) -> None:
    """Show the present state of a server, and the commands for who has a token."""
    token = ask_token(connection) if connection.has_tokens else ""
    if connection.has_tokens and not token:
        st.info("This server shows its state to who has one of its tokens.", icon=":material/key:")
        return
    try:
        answer = call_server(connection.address, READ_STATUS, token)
    except ServerCallFailed as failure:
        st.warning(f"{formats.plain(str(failure))} It is asked again every 3 seconds.", icon=":material/cloud_off:")
        return
    show_answer(connection, token, answer)


def show_answer(connection: LiveConnection, token: str, answer: ServerAnswer) -> None:
    status = read_status(answer.document) if answer.is_success else None
    if not answer.is_success:
        said = formats.plain(formats.shortened(answer.message, 500))
        st.warning(f"The server answered {answer.status}. {said}", icon=":material/block:")
    elif status is None:
        st.warning("The address answered, but not with the status of a swarm server.", icon=":material/block:")
    else:
        if connection.has_tokens:
            commands.show_commands(connection.address, token, status)
        else:
            show_shell_commands(connection.address)
        state_view.show_state(status)


def ask_token(connection: LiveConnection) -> str:
    """Return the token that the user types. It stays in this session, for this address alone."""
    return st.text_input(
        "Token",
        type="password",
        autocomplete="off",
        max_chars=500,
        key=f"token of {connection.address}",
        help="An observer's token reads; a commander's also starts, stops and changes. It is kept in this session "
        "only: neither the page's address nor the database has it.",
        width=340,
    ).strip()


def show_shell_commands(address: str) -> None:
    with st.expander("Commands", icon=":material/terminal:"):
        st.caption(
            "This server has no tokens: it obeys everybody on its machine, so this page only reads. In a shell there:"
        )
        lines = (f"export SWARM_URL={address}", "swarm job --set lr=3e-4", "swarm stop --engine-only")
        st.code("\n".join(lines), language=None)


st.title("Servers", anchor=False)
live.follow(show_recorded, token=partial(elements.store().list_servers))
st.subheader("Live state", anchor=False)
connection = st.session_state.get(CONNECTION)
if connection is None:
    choose_address()
else:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"Connected to {formats.name(connection.address)}", width="content")
        st.button("Disconnect", icon=":material/link_off:", on_click=disconnect)
    st.fragment(show_live, run_every=REFRESH)(connection)
