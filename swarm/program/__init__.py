"""Programs: an agent for any environment, with its training reward and its curriculum; the library runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.processes.imports import lazy_names

if TYPE_CHECKING:
    from swarm.client.evaluation import attempt_seed as attempt_seed
    from swarm.program.attempts import Model as Model
    from swarm.program.attempts import RecordedSession as RecordedSession
    from swarm.program.base import PLAIN as PLAIN
    from swarm.program.base import Program as Program
    from swarm.program.base import answer_in_turn as answer_in_turn
    from swarm.program.base import is_program as is_program
    from swarm.program.base import load_program as load_program
    from swarm.program.base import rewards_of as rewards_of
    from swarm.program.command_line import ENVIRONMENT_FAILED as ENVIRONMENT_FAILED
    from swarm.program.command_line import NO_SANDBOX as NO_SANDBOX
    from swarm.program.command_line import PROGRAM_FAILED as PROGRAM_FAILED
    from swarm.program.command_line import main as main
    from swarm.program.hosted.process import MAX_HUNG as MAX_HUNG
    from swarm.program.hosted.process import ProgramProcess as ProgramProcess
    from swarm.program.hosted.process import place_program as place_program
    from swarm.program.limits import reply_limit as reply_limit
    from swarm.program.order import RUN_MARK as RUN_MARK
    from swarm.program.training import EVAL_TEMPERATURE as EVAL_TEMPERATURE
    from swarm.program.training import EndedAttempt as EndedAttempt
    from swarm.program.training import measure as measure
    from swarm.program.training import train as train

# The process of a foreign program does not have the modules that drive it.
__getattr__, __dir__ = lazy_names(__name__)
