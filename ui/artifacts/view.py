"""The table of recorded files, and the commands that load the one that is selected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from experiments_db import RecordedTraining, Run
from ui import elements, formats, queries
from ui.artifacts.media import show_media
from ui.artifacts.recorded_files import Presence, RecordedFile, commands_of, files_of_run, files_of_training

FILE = "file"


def show_files_of_run(run: Run) -> None:
    """Show what a run of a study has left."""
    database = elements.database()
    artifacts = elements.store().list_artifacts(run.study_id, run_id=run.id)
    show_files(files_of_run(queries.home_of(database), run, artifacts))


def show_files_of_training(training: RecordedTraining) -> None:
    """Show what a recorded training has kept."""
    database = elements.database()
    events = queries.list_saved_files(database, training.id)
    files = files_of_training(queries.home_of(database), training, events)
    if files:
        show_files(files)
    else:
        st.caption("No checkpoint was kept. The job's `save_freq` says how often one is.")


def show_files(files: Sequence[RecordedFile]) -> None:
    """Show a table of files, and how the selected one is loaded."""
    if not files:
        st.caption("No file has been recorded.")
        return
    chosen = elements.choose_row(
        _table_of(files), [file.path for file in files], param=FILE, alt="Recorded files", column_config=_COLUMNS
    )
    file = next((file for file in files if file.path == chosen), None)
    if file is None:
        st.caption("Select a file to see its content, or how it is loaded.")
        return
    _show_file(file)


def _table_of(files: Sequence[RecordedFile]) -> pd.DataFrame:
    table = pd.DataFrame(
        [
            {
                "Kind": formats.printable(file.kind),
                "Step": file.step,
                "File": formats.printable(Path(file.path).name or file.path),
                "State": file.presence.value,
                "Size": None if file.size_bytes is None else formats.size(file.size_bytes),
                "Recorded": formats.moment(file.recorded_at),
                "Path": formats.printable(file.path),
            }
            for file in files
        ]
    )
    return table.dropna(axis="columns", how="all")


_COLUMNS = {
    "State": st.column_config.TextColumn(help="Only below the folder of the database are files looked at"),
    "Path": st.column_config.TextColumn(width="large"),
}


def _show_file(file: RecordedFile) -> None:
    st.markdown(formats.name(file.path))
    if file.presence in (Presence.GONE, Presence.REMOVED):
        how = "The study removed it, because nothing needs it." if file.presence is Presence.REMOVED else ""
        st.warning(f"It is no longer there. {how}", icon=":material/folder_off:")
        return
    if file.presence is Presence.HERE:
        show_media(file)
    if file.presence is Presence.ELSEWHERE:
        st.caption("It was recorded outside of the database's folder, where this page does not look.")
    for command in commands_of(file):
        st.caption(command.title)
        st.code(command.text, language=None, wrap_lines=True)
