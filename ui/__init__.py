"""The explorer: a Streamlit view of studies, runs, trainings and servers. `streamlit run ui/app.py` starts it.

    app.py        navigation           app_pages/   one script per page
    queries.py    cached reads of the store           contents.py  what follows from the records of a study
    charts.py     frames -> Altair charts             elements.py  parts that several pages show
    differences.py, formats.py, token_view.py, downloads.py   values -> what is shown of them
    artifacts/    recorded files, and how they are loaded   servers/   calls of servers that a user connects to

Of this project it imports only `experiments_db`. Streamlit puts this folder first on `sys.path`, so no module here may
bear the name of an installed package.
"""
