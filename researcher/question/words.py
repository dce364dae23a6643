"""The words that a topic may use beside the names of settings and values. docs/research.md shows these tables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from researcher.charter import Asked, ComparedAt
from researcher.scope import ArmPart

# A word is here only if the question stays the same without it. Negations, multiples and restrictions ("not", "twice",
# "except") are therefore not here, and a topic with them is refused.
HARMLESS = frozenset(
    """
    a affect affects against agent agents an and any are arms as at by can change changes choice choose compare
    compares comparing comparison could did differ difference differs do does effect either environment environments
    examine for get gets given help helps how hurt hurts i if impact in influence influences investigate is it its
    learn learned learning learns make makes many me measure much my no of on or our per please result results reward
    should show some study studying task tasks test testing than that the there these this those train trained
    training trains try under us use used uses using versus vs was we what when which will with without work works
    worth would you
    """.split()  # noqa: SIM905
)
QUESTIONS = frozenset(
    """
    affect affects are can change changes compare comparing could did differ differs do does effect help helps how hurt
    hurts if impact improve improves influence influences is should versus vs what when which will would
    """.split()  # noqa: SIM905
)
"""The words of which one makes a topic a question: "does it train without KL" compares, "train without KL" does not."""
ASKED: Mapping[str, Asked] = MappingProxyType(
    {
        **dict.fromkeys(("matter", "matters", "important", "make a difference", "makes a difference"), Asked.EFFECT),
        **dict.fromkeys(("best", "optimal", "ideal", "how large should", "how high should"), Asked.BEST),
        **dict.fromkeys(("better", "beat", "beats", "outperform", "outperforms", "instead of", "worse than"),
                        Asked.BETTER),
        **dict.fromkeys(("matter more", "matters more", "more important"), Asked.MATTERS_MORE),
        **dict.fromkeys(("interact", "interacts", "interaction", "interaction of", "depend on", "depends on"),
                        Asked.INTERACTION),
        **dict.fromkeys(("as good as", "equivalent", "equally good", "the same result", "equal within"), Asked.EQUAL),
        **dict.fromkeys(("sooner", "faster", "fastest", "quicker", "learn faster", "learns faster", "slower than"),
                        Asked.SOONER),
        **dict.fromkeys(("more stable", "most stable", "more reproducible", "most reproducible"), Asked.MORE_STABLE),
        **dict.fromkeys(("needed", "necessary", "need", "do we need", "required"), Asked.NEEDED),
        **dict.fromkeys(("diverge", "diverges", "unstable", "become unstable", "blow up", "blows up", "collapse"),
                        Asked.DIVERGES),
    }
)  # fmt: skip
SWAPPED = frozenset({"worse than", "slower than"})
"""The relations of which the arm before is the baseline: A is worse than B if B is better than A."""
OPTIMIZES = (
    "find the best settings", "find the best setting", "find the best recipe", "find the best hyperparameters",
    "which settings", "what settings", "the best settings", "best recipe", "best hyperparameters", "tune the settings",
    "tune all settings", "optimize", "optimise", "optimize the settings",
)  # fmt: skip
PARTS: Mapping[str, ArmPart] = MappingProxyType(
    {
        **dict.fromkeys(("settings", "setting", "hyperparameters", "hyperparameter"), ArmPart.SETTINGS),
        **dict.fromkeys(("reward", "rewards", "reward function", "reward functions", "reward shaping"), ArmPart.REWARD),
        **dict.fromkeys(
            ("curriculum", "curricula", "order of tasks", "order of the tasks", "task order", "schedule of tasks",
             "task schedule"),
            ArmPart.SCHEDULE,
        ),
        **dict.fromkeys(("workflow", "workflows", "agent", "agents", "prompt", "prompts"), ArmPart.AGENT),
    }
)  # fmt: skip
"""What a search may look for, as a topic says it: "a reward for sorting" asks for rewards alone."""
SEEKS = frozenset(
    (
        *("design", "develop", "discover", "explore", "find", "find out", "invent", "look for", "propose"),
        *("search for", "tune", "write"),
    )
)
"""The words after which a topic names what it looks for. To optimize a reward is to raise it, so that is none."""
OPEN_QUESTIONS = frozenset({"which", "what"})
CLOSED_QUESTIONS = frozenset(
    ("are", "can", "could", "did", "do", "does", "how", "is", "should", "was", "were", "will", "would")
)
"""The first words of topics that look for nothing: "does it find a better reward?" compares."""
PRAISES = frozenset({"a", "an", "best", "better", "good", "ideal", "new", "optimal"})
"""The words of which one makes the first words of a topic what it looks for: "a reward", but not "the reward"."""
NOT_SOUGHT = frozenset(
    """
    and are as at because but by do does for from give gives giving has have how if in is maximizing of on or out so
    than that their to under until use using what when where whether which while whose why with without yielding
    """.split()  # noqa: SIM905
)
"""The words that do not stand between "find" and what is looked for."""
MOST_BETWEEN = 3
_UNITS = {
    ComparedAt.EPISODES: ("episodes", "rollouts", "samples", "data"),
    ComparedAt.STEPS: ("steps", "training steps", "updates"),
    ComparedAt.TOKENS: ("tokens", "sampled tokens"),
    ComparedAt.TIME: ("training time", "wall clock time"),
}
_SAME = ("equal", "the same", "the same number of", "an equal number of", "the same amount of", "equal numbers of")
OPTIMIZERS = frozenset({"adam", "adamw", "muon", "sgd", "lion", "adafactor", "rmsprop", "shampoo", "soap"})
"""The names of optimizers, none of which is a setting."""
EQUAL: Mapping[str, ComparedAt] = MappingProxyType(
    {
        "at equal time": ComparedAt.TIME,
        **{
            f"{place} {same} {unit}": meaning
            for meaning, units in _UNITS.items()
            for unit in units
            for place in ("at", "with", "for", "under")
            for same in _SAME
        },
    }
)
_OF_EACH = ("", " each", " per arm")
COUNTED: Mapping[str, str] = MappingProxyType(
    {
        **{f"{noun}{each}": "seeds" for noun in ("seeds", "seed", "random seeds") for each in _OF_EACH},
        **{f"{noun}{each}": "steps" for noun in ("steps", "step", "training steps") for each in _OF_EACH},
        "runs": "max_runs", "runs at most": "max_runs", "runs in all": "max_runs",
        "hours": "max_hours", "hour": "max_hours",
        "gpus": "n_gpu", "gpu": "n_gpu",
        "held-out episodes": "eval_episodes", "held-out tasks": "eval_episodes",
    }
)  # fmt: skip
BEFORE_COUNTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(("with", "and", "given"), frozenset(COUNTED.values())),
        **dict.fromkeys(("over", "across"), frozenset({"seeds"})),
        "for": frozenset({"steps"}),
        "within": frozenset({"max_hours"}),
    }
)
"""The words that a count may follow, and what it may then count: "over nine seeds", but not "over 100 steps"."""
MODEL_FAMILIES = ("gemma", "llama", "mistral", "olmo", "phi", "pythia", "qwen", "smollm", "tinyllama")
"""How names of models begin that are not bundled. A topic that trains one needs its folder."""
BEFORE_MODELS = frozenset({"with", "on", "of", "for", "using", "train", "trains", "training"})
NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
        "ten": "10", "eleven": "11", "twelve": "12", "a dozen": "12", "twenty": "20", "thirty": "30",
        "forty": "40", "fifty": "50", "a hundred": "100", "a thousand": "1000",
    }
)  # fmt: skip
"""Numbers in words. "One" is none of them: it may stand for a thing, as in "the better one"."""
NAMES_OF_ENVIRONMENTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("reverse", "word reversal", "reversal", "string reversal", "reversing words"), "reverse"),
        **dict.fromkeys(("copying", "copying words"), "copy"),
        **dict.fromkeys(("sorting", "sorting letters", "letter sorting"), "sort"),
        **dict.fromkeys(("addition", "adding numbers", "adding two numbers"), "add"),
        **dict.fromkeys(("counting", "counting letters", "letter counting"), "count"),
        **dict.fromkeys(("calc", "calculator", "the calculator", "tool use", "calculator use"), "calc"),
        **dict.fromkeys(("guessing", "guessing game", "number guessing", "guessing numbers"), "guess"),
        **dict.fromkeys(("running totals", "running total", "chained sums"), "chain"),
    }
)
VERBS_OF_ENVIRONMENTS = ("copy", "sort", "add", "count", "guess", "chain")
"""Names of environments that are also verbs: they are read as names only after words such as "on" or "for"."""
