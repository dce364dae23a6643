"""The tool `program_api`: the contract of a program in full, with examples that run."""

from __future__ import annotations

import re
from importlib.resources import files

from prompts import load
from researcher.planner.tools.base import PlannerTool, ToolArguments

PATTERNS = "skills/shipped/write-program/references/patterns.md"
EXAMPLES = ("turns.py", "review.py", "curriculum.py")
REWARD_AND_SCHEDULE = """What the functions get, in more detail:

- `reward(task, transcript, grade)`: `transcript` has all messages of the session, the opening ones first: those of the environment (system, user, tool) and the answers that the agent gave to the session. It does not have the agent's own requests to the model; what the reward should know of them, the agent must answer with. `grade.score` is what the arm is judged by on held-out tasks, `grade.details` what the grader says besides. The reward must be a finite number, and it is computed within 30 s.
- `schedule(tasks, progress)`: `tasks` are the coming train tasks, four times as many as are needed; return some of them in the order in which they are to be trained, at least one. It gets no scores.
- reward and schedule run in another process than the agent: they share no variables. No function sees a solution, or whether it is trained or scored."""  # noqa: E501


class ProgramApiArguments(ToolArguments):
    pass


def program_api_tool() -> PlannerTool:
    """Return the tool."""

    def call(_: ProgramApiArguments) -> str:
        contract = load("program_contract", example=load("program").strip())
        return "\n\n".join([contract, REWARD_AND_SCHEDULE, "Further whole programs:", *_examples()])

    return PlannerTool(
        "program_api", "Read the contract of a program in full, with examples.", ProgramApiArguments, call
    )


def _examples() -> list[str]:
    text = files("swarm").joinpath(PATTERNS).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [f"```python\n{block}```" for name in EXAMPLES for block in blocks if block.startswith(f"# {name}\n")]
