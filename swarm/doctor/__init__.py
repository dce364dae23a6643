"""The examination of a machine before or while it runs a server: it finds faults and says what to do about them."""

from swarm.doctor.examination import Health
from swarm.doctor.installed import check_packages, check_sampler

__all__ = ["Health", "check_packages", "check_sampler"]
