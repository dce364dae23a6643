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

# The pages by the names of their files and in the order of their titles, with an icon and what they show. A text that
# stands by itself would appear on every page.
PAGES = (
    ("home", "home", "What runs now, and what ended last."),
    ("studies", "science", "All studies with their status and best arm."),
    ("study", "account_tree", "One study: question, arms, ranking, comparisons, decisions and events."),
    ("runs", "table_rows", "Runs as a table: filter, sort, download, open or compare."),
    ("run", "show_chart", "One run: curves, config, code, log, events, evaluations and episodes."),
    ("trainings", "model_training", "Every training of every server, also outside of studies."),
    ("training", "monitoring", "One training: curves, held-out scores, episodes, settings, machine and events."),
    ("episodes", "forum", "Trained and held-out episodes: search, conversation, tokens and group."),
    ("servers", "dns", "Servers as recorded; the live state of one, and commands with its token."),
    ("compare", "compare_arrows", "Arms or runs side by side: curves, scores, config, code and factor effects."),
)

page = st.navigation(
    [
        st.Page(
            f"app_pages/{name}.py",
            title=name.capitalize(),
            icon=f":material/{icon}:",
            default=name == "home",
            help=shown,
        )
        for name, icon, shown in PAGES
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
