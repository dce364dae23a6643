"""Measurements of each commit by asv (asv.conf.json)."""
