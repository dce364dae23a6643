"""The servers that recorded trainings; the live state of one, and commands for who has its token.

An address is called only after a click on Connect: a database may come from somebody else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
import streamlit as st

from experiments_db import RecordedTraining
from ui import elements, formats, live, queries
from ui.servers import commands, state_view
from ui.servers.calls import READ_STATUS, UNAUTHORIZED, ServerAnswer, ServerCallFailed, call_server, check_address
from ui.servers.status import read_status
from ui.tables.training_rows import OVER, name_of

REFRESH = "3s"
USUAL = "http://127.0.0.1:10086"
SERVER = "server"
CONNECTION, FAILURE = "connected server", "failed connection"
# A server that works is recorded every ten seconds.
SILENT_S = 60.0


@dataclass(frozen=True, slots=True)
class LiveConnection:
    """The server that the user is connected to. Without `has_tokens` it takes everybody for its commander."""

    address: str
    has_tokens: bool


@dataclass(frozen=True, slots=True)
class RecordedServer:
    """A server by its recorded trainings, the newest first. `home` is the folder with its ledger.

    `url` is where a study of this database launched a run on it; None if none did.
    """

    home: str
    url: str | None
    trainings: tuple[RecordedTraining, ...]

    @property
    def last_seen_at(self) -> float:
        return max(training.updated_at for training in self.trainings)

    @property
    def state(self) -> str:
        """The last recorded state. A server that worked and has said nothing since is silent."""
        status = self.trainings[0].status
        is_silent = status not in OVER and time.time() - self.last_seen_at > SILENT_S
        return f"{status.lower()}, silent since" if is_silent else status.lower()


def list_servers() -> list[RecordedServer]:
    """Return the servers of the newest trainings, the one that was seen last first."""
    by_home: dict[str, list[RecordedTraining]] = {}
    for training in queries.list_trainings(elements.database()):
        by_home.setdefault(training.home, []).append(training)
    servers = [RecordedServer(home, url_of(trainings), tuple(trainings)) for home, trainings in by_home.items()]
    return sorted(servers, key=lambda server: -server.last_seen_at)


def url_of(trainings: Sequence[RecordedTraining]) -> str | None:
    launched = next((training.launch_key for training in trainings if training.launch_key), None)
    run = None if launched is None else elements.store().find_run(launched)
    return None if run is None else run.server_url


def table_of(servers: list[RecordedServer]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "Server": formats.printable(server.home),
                "Address": None if server.url is None else formats.printable(server.url),
                "State": server.state,
                "Last sign of life": f"{formats.duration(time.time() - server.last_seen_at)} ago",
                "Newest training": formats.printable(name_of(server.trainings[0])),
                "Model": formats.printable(server.trainings[0].model),
                "Trainings": len(server.trainings),
                "Steps": sum(training.step for training in server.trainings),
            }
            for server in servers
        ]
    )


COLUMNS = {
    "Server": st.column_config.TextColumn(help="The folder with its ledger"),
    "Address": st.column_config.TextColumn(help="Known for servers that a study used"),
    "State": st.column_config.TextColumn(help="As recorded last. Connect to see the present state."),
    "Trainings": st.column_config.NumberColumn(help="Recorded trainings"),
    "Steps": st.column_config.NumberColumn(help="Of all these together", format="localized"),
}


def show_recorded() -> None:
    with elements.store_errors():
        servers = list_servers()
        if not servers:
            st.info("No server has recorded anything here yet. Every server does, for example:", icon=":material/info:")
            st.code("swarm train --env reverse", language=None)
            return
        asked = elements.choose_row(
            table_of(servers), [server.home for server in servers], param=SERVER, alt="Servers", column_config=COLUMNS
        )
        chosen = next((server for server in servers if server.home == asked), None)
        if chosen is None:
            st.caption("Select a server to take over its address, or type another one below.")
        else:
            newest = chosen.trainings[0].id
            elements.link("training", "Open its newest training", icon=":material/monitoring:", training=newest)


def choose_address() -> None:
    """Let the user connect to an address: the recorded one of the selected server, or another one."""
    known = {server.home: server.url or "" for server in list_servers()}
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
live.follow(show_recorded, token=partial(queries.list_trainings, elements.database()))
st.subheader("Live state", anchor=False)
connection = st.session_state.get(CONNECTION)
if connection is None:
    choose_address()
else:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"Connected to {formats.name(connection.address)}", width="content")
        st.button("Disconnect", icon=":material/link_off:", on_click=disconnect)
    st.fragment(show_live, run_every=REFRESH)(connection)
