"""The writes of a ledger: one function per fact to record, one module per kind of fact.

Place in the flow: each function runs inside a transaction of the writer. The ledger binds its arguments, and the time
`at` of the call for functions that record an event. These modules know nothing of threads.
"""

from swarm.ledger.writes import batches as batches
from swarm.ledger.writes import episodes as episodes
from swarm.ledger.writes import events as events
from swarm.ledger.writes import guard as guard
from swarm.ledger.writes import jobs as jobs
from swarm.ledger.writes import open_work as open_work
from swarm.ledger.writes import turns as turns
