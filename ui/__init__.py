"""The explorer: a read-only Streamlit view of studies and runs. `streamlit run ui/app.py` starts it.

    app.py        navigation           app_pages/   one script per page
    queries.py    cached reads of the store           contents.py  what follows from the records of a study
    charts.py     frames -> Altair charts             elements.py  parts that several pages show
    differences.py, formats.py, token_view.py, downloads.py   values -> what is shown of them

It reads only `experiments_db`. Streamlit puts this folder first on `sys.path`, so no module here may bear the name of
an installed package.
"""
