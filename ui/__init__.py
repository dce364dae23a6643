"""The explorer: a Streamlit view of studies, runs, trainings and servers. `streamlit run ui/app.py` starts it.

Streamlit puts this folder first on `sys.path`, so no module here may bear the name of an installed package.
"""
