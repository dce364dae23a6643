"""The writes of a ledger: one function per fact to record, each run inside a transaction of the writer."""

from swarm.ledger.writes import batches as batches
from swarm.ledger.writes import demonstrations as demonstrations
from swarm.ledger.writes import episodes as episodes
from swarm.ledger.writes import events as events
from swarm.ledger.writes import jobs as jobs
from swarm.ledger.writes import turns as turns
