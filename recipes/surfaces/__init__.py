"""Response surfaces: every combination of some settings, trained with the bundled model, as recorded scores."""
