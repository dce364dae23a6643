"""Pictures, sounds and tables among the recorded files, shown as what they are; nothing that a browser could run."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import streamlit as st

from ui.artifacts.recorded_files import RecordedFile

MOST_BYTES = 20 * 1024 * 1024
MOST_ROWS = 1000
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
SOUNDS = (".wav", ".mp3", ".ogg", ".flac")
FILMS = (".mp4", ".webm")
TABLES = (".csv", ".parquet")


def show_media(file: RecordedFile) -> None:
    """Show the content of a picture, sound, film or table; nothing for any other file."""
    path = Path(file.path)
    suffix = path.suffix.lower()
    if suffix not in (*PICTURES, *SOUNDS, *FILMS, *TABLES):
        return
    if (file.size_bytes or 0) > MOST_BYTES:
        st.caption("It is too large to be shown here.")
        return
    try:
        _show(path.read_bytes(), suffix)
    except Exception as error:  # noqa: BLE001
        # The file is foreign, and the libraries that read it raise what they like.
        st.caption(f"It cannot be shown ({type(error).__name__}).")


def _show(data: bytes, suffix: str) -> None:
    if suffix in PICTURES:
        st.image(data)
    elif suffix in SOUNDS:
        st.audio(data, format=f"audio/{suffix[1:]}")
    elif suffix in FILMS:
        st.video(data, format=f"video/{suffix[1:]}")
    else:
        table = pd.read_csv(io.BytesIO(data)) if suffix == ".csv" else pd.read_parquet(io.BytesIO(data))
        st.dataframe(table.head(MOST_ROWS), hide_index=True, alt="The table in the file")
        if len(table) > MOST_ROWS:
            st.caption(f"The first {MOST_ROWS} of {len(table):,} rows.")
