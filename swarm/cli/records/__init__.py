"""The commands on what a server has recorded: backup, clean-up, and import into the experiments database."""
