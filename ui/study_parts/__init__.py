"""The parts of the study page that show its search, plans and notebook."""
