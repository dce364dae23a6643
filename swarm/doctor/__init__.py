"""The examination of a machine before or while it runs a server: it finds faults and says what to do about them.

Place in the flow: the CLI uses it. examination.py runs checks within time limits and checks.py lists them. The checks
are in installed.py, home.py, address.py and verl.py. They change no ledger and no running server, and remove the files
that they write to measure a disk.
"""

from swarm.doctor.examination import Health
from swarm.doctor.verl import check_sampler, check_trainer

__all__ = ["Health", "check_sampler", "check_trainer"]
