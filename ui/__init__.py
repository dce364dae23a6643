"""The explorer: a Streamlit view of studies, runs, trainings and servers. `streamlit run ui/app.py` starts it.

    app.py        navigation           app_pages/   one script per page
    queries.py    reads of the store   reading/     what was read, kept until the database changes
    contents.py   what follows from the records of a study   live.py      pages that follow the database
    charts.py     frames -> Altair charts             elements.py  parts that several pages show
    differences.py, formats.py, token_view.py, downloads.py   values -> what is shown of them
    artifacts/    recorded files, and how they are loaded   servers/   calls of servers that a user connects to

Of this project it imports only `experiments_db`. Streamlit puts this folder first on `sys.path`, so no module here may
bear the name of an installed package.
"""
