"""The writes of a ledger: one function per fact to record, one module per kind of fact."""

from swarm.ledger.writes import batches as batches
from swarm.ledger.writes import episodes as episodes
from swarm.ledger.writes import events as events
from swarm.ledger.writes import guard as guard
from swarm.ledger.writes import jobs as jobs
from swarm.ledger.writes import open_work as open_work
from swarm.ledger.writes import turns as turns
