"""What asv measures of each commit (asv.conf.json)."""
