"""Entry point of the explorer, which finds the database and opens the requested page.

    streamlit run ui/app.py            reads SWARM_RESEARCH_DB, or research.db under SWARM_HOME (./runs)

Every page is reached by an address: /study?study=..., /run?run=..., /training?training=..., /compare?runs=a,b,
/episodes?run=...&episode=..., /servers?server=..., each with &db=PATH for another database file.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

try:
    import streamlit as st

    from experiments_db import RecordNotFound
    from ui import elements, queries
except ModuleNotFoundError as error:
    sys.exit(f"ui: {error.name} is not installed: pip install 'swarm-researcher[ui]' brings it")

# So many objects take a few milliseconds.
MOST_COLLECTED = 30_000

# For a symbol, Streamlit would have the browser fetch an icon from the internet.
st.set_page_config(page_title="Run explorer", page_icon=str(Path(__file__).with_name("icon.svg")), layout="wide")

# White text on the theme's own colour for chosen values is too pale where the theme is dark.
st.html("<style>span[data-tag] {background-color: #3659c9 !important;}</style>")

page = st.navigation(
    [
        st.Page(
            "app_pages/home.py",
            title="Home",
            icon=":material/home:",
            default=True,
            help="What runs now, and what ended last.",
        ),
        st.Page(
            "app_pages/studies.py",
            title="Studies",
            icon=":material/science:",
            help="All studies with their status and best arm.",
        ),
        st.Page(
            "app_pages/study.py",
            title="Study",
            icon=":material/account_tree:",
            help="One study: question, arms, ranking, comparisons, decisions and events.",
        ),
        st.Page(
            "app_pages/runs.py",
            title="Runs",
            icon=":material/table_rows:",
            help="Runs as a table: filter, sort, download, open or compare.",
        ),
        st.Page(
            "app_pages/run.py",
            title="Run",
            icon=":material/show_chart:",
            help="One run: curves, config, code, log, events, evaluations and episodes.",
        ),
        st.Page(
            "app_pages/trainings.py",
            title="Trainings",
            icon=":material/model_training:",
            help="Every training of every server, also outside of studies.",
        ),
        st.Page(
            "app_pages/training.py",
            title="Training",
            icon=":material/monitoring:",
            help="One training: curves, held-out scores, trained episodes, settings, machine and events.",
        ),
        st.Page(
            "app_pages/episodes.py",
            title="Episodes",
            icon=":material/forum:",
            help="Trained and held-out episodes: search, conversation, tokens and group.",
        ),
        st.Page(
            "app_pages/servers.py",
            title="Servers",
            icon=":material/dns:",
            help="Servers as recorded; the live state of one, and commands with its token.",
        ),
        st.Page(
            "app_pages/compare.py",
            title="Compare",
            icon=":material/compare_arrows:",
            help="Arms or runs side by side: curves, scores, config, code and factor effects.",
        ),
    ],
    position="top",
)


def spare_lasting_objects() -> None:
    """Exempt what has come to stay from the garbage collection with which Streamlit ends each run of a page."""
    if len(gc.get_objects()) > MOST_COLLECTED:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


with elements.store_errors():
    location = elements.choose_database()
    try:
        queries.open_database(location)
    except RecordNotFound:
        elements.show_missing_database(location)
    else:
        page.run()
        spare_lasting_objects()
