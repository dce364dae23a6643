"""The rounds of an exploring study: who makes them, who reviews their leader, and where their runs go on."""
