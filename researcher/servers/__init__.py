"""The swarm servers of a study."""
