"""Response surfaces: every combination of some settings, trained with the bundled model and scored, as recorded data."""
