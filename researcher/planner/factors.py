"""What can be compared without a language model: each factor's names in a topic, its job settings and its usual values.

Place in the flow: topic.py looks mentions up here, rules.py builds arms from the levels. Whether a value is in range is
decided by TrainJob alone. This module knows nothing of tasks, designs or seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from experiments_db import number_as_text
from researcher.planner.reading.goals import ComparedAt
from swarm.job import LR_OF_BUNDLED_MODELS

EPISODES_PER_STEP = 128
"""16 tasks of 8 episodes. Group sizes are compared at this many episodes per step, so that none sees more data."""

DEFAULT_MAX_TOKENS = 256
"""The bound on a reply of an environment that sets none, and of a job."""

KL_COEFFICIENT = 0.05
"""For "KL or no KL": large enough to hold a model of half a million parameters back visibly within thirty steps."""

MINIBATCHES_FOR_CLIPPING = 4
"""Ratios are clipped only from the second minibatch of a step on; with one, no clip setting has any effect."""


@dataclass(frozen=True, slots=True)
class Level:
    """One value of a factor: `factors` is what the study compares, `settings` what the job is given."""

    name: str
    factors: Mapping[str, Any]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of one study. `explicit` if the topic gave its values.

    `note` says what was held constant for it and `base` holds the settings that takes in every arm. `compared_with` is
    the level that the topic compares the others with, if it names one.
    """

    name: str
    levels: tuple[Level, ...]
    explicit: bool
    note: str = ""
    base: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compared_with: Level | None = None


@dataclass(frozen=True, slots=True)
class FactorSpec:
    """A factor that a topic can name. `pattern` matches its names, case-insensitively.

    `grid` are the levels for a topic that gives no values. `settings_of` turns a number into job settings; None where
    the values are words, found by the names of `named`. `off` is the value at which the setting does nothing, `ladder`
    are the values that a search for where training diverges climbs. `compared_at` is what its arms get the same amount
    of where the topic does not say.
    """

    name: str
    pattern: str
    grid: tuple[Level, ...]
    settings_of: Callable[[float], dict[str, Any]] | None = None
    default: float | None = None
    named: tuple[Level, ...] = ()
    settings: tuple[str, ...] = ()
    note: str = ""
    base: Mapping[str, Any] = field(default_factory=dict[str, Any])
    off: float | None = None
    ladder: tuple[float, ...] = ()
    compared_at: ComparedAt = ComparedAt.EPISODES

    @property
    def numeric(self) -> bool:
        return self.settings_of is not None


def number_level(spec: FactorSpec, number: float) -> Level:
    assert spec.settings_of is not None
    value = _whole(number)
    return Level(f"{spec.name}={number_as_text(value)}", {spec.name: value}, spec.settings_of(number))


def _whole(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _numeric(
    name: str,
    pattern: str,
    values: tuple[float, ...],
    default: float,
    *,
    setting: str | None = None,
    settings_of: Callable[[float], dict[str, Any]] | None = None,
    note: str = "",
    base: Mapping[str, Any] | None = None,
    off: float | None = None,
    ladder: tuple[float, ...] = (),
    compared_at: ComparedAt = ComparedAt.EPISODES,
) -> FactorSpec:
    key = setting or name
    convert = settings_of or (lambda number: {key: _whole(number)})
    spec = FactorSpec(
        name, pattern, (), convert, default, (), tuple(convert(values[-1])), note, base or {}, off, ladder, compared_at
    )
    return replace(spec, grid=tuple(number_level(spec, value) for value in values))


def _named(name: str, pattern: str, levels: Mapping[str, Mapping[str, Any]], note: str = "") -> FactorSpec:
    named = tuple(Level(label, {name: label}, settings) for label, settings in levels.items())
    settings = tuple({key for level in named for key in level.settings})
    return FactorSpec(name, pattern, named, named=named, settings=settings, note=note)


def _group_settings(number: float) -> dict[str, Any]:
    if number < 1 or number != int(number):
        return {"num_repeat": number}
    size = int(number)
    return {"num_repeat": size, "batch_size": max(1, round(EPISODES_PER_STEP / size))}


def _kl_settings(number: float) -> dict[str, Any]:
    return {"use_kl_loss": number != 0, "kl_loss_coef": number}


_CLIPPING = MappingProxyType({"mini_batch_num": MINIBATCHES_FOR_CLIPPING})
_CLIP_NOTE = f"every step has {MINIBATCHES_FOR_CLIPPING} minibatches, as clipping has no effect on the first one"

_BATCH_SIZE = (
    r"(?<!mini)(?<!mini-)(?<!mini )(?:train[-_ ])?batch[-_ ]?sizes?|(?:larger?|big(?:ger)?|small(?:er)?) batches"
    r"|(?:number of )?(?:tasks|prompts|questions|problems) per (?:step|batch)"
)

FACTORS: tuple[FactorSpec, ...] = (
    _numeric(
        "lr",
        r"learning[-_ ]?rates?|lrs?\b|step[- ]sizes?",
        (3e-4, 1e-3, 3e-3),
        1e-3,
        ladder=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    ),
    _numeric(
        "num_repeat",
        r"(?:group|rollout)[-_ ]?sizes?|num[_ ]repeats?|num[_ ]generations|(?:larger?|big(?:ger)?|small(?:er)?) groups"
        r"|(?:number of )?(?:episodes|rollouts|samples|completions|generations|repeats|answers)"
        r" per (?:task|group|prompt|question|problem)|number of (?:rollouts|samples|completions|generations)",
        (2, 4, 8, 16),
        8,
        settings_of=_group_settings,
        note=f"every group size gets {EPISODES_PER_STEP} episodes per step, so the number of tasks per step varies",
    ),
    _numeric(
        "kl_loss_coef",
        r"kl(?:[_ -]?loss)?[_ -]?(?:coefficients?|coefs?|weights?|strengths?|betas?)|strengths? of the kl",
        (0, 0.01, 0.1),
        0,
        settings_of=_kl_settings,
    ),
    FactorSpec(
        "use_kl_loss",
        r"(?:use_)?kl(?:_loss)?\b(?! ?(?:types?|kinds?|estimators?))",
        (
            Level("no-kl", {"use_kl_loss": False}, {"use_kl_loss": False}),
            Level("kl", {"use_kl_loss": True}, _kl_settings(KL_COEFFICIENT)),
        ),
        _kl_settings,
        0,
        settings=("use_kl_loss", "kl_loss_coef"),
        note=f"the KL arm adds a loss term of coefficient {KL_COEFFICIENT} towards the base model",
    ),
    _numeric("temperature", r"(?:sampling )?temperatures?|temps?\b", (0.7, 1.0, 1.3), 1.0),
    _numeric("batch_size", _BATCH_SIZE, (8, 16, 32), 16),
    _numeric("mini_batch_num", r"mini[-_ ]?batch(?:es\b|_num\b|\b(?![-_ ]?sizes?))(?: per step)?", (1, 2, 4), 4),
    _numeric("ppo_epochs", r"(?:ppo[_ ])?epochs?", (1, 2, 4), 1),
    _numeric(
        "clip_ratio_high",
        r"clip[-_ ]?(?:ratio[-_ ])?high(?:er)?",
        (0.2, 0.28),
        0.2,
        note=_CLIP_NOTE,
        base=_CLIPPING,
    ),
    _numeric(
        "clip_ratio",
        r"clip(?:ping)?[-_ ]?(?:ratios?|ranges?|epsilons?|thresholds?)|(?:ppo[- ]|ratio[- ])?clip(?:ping)?\b(?!-)",
        (0.1, 0.2, 0.3),
        0.2,
        note=_CLIP_NOTE,
        base=_CLIPPING,
        off=1000.0,
    ),
    _numeric(
        "clip_ratio_low", r"clip[-_ ]?(?:ratio[-_ ])?low(?:er)?", (0.2, 0.1), 0.2, note=_CLIP_NOTE, base=_CLIPPING
    ),
    _numeric(
        "grad_clip",
        r"(?:grad(?:ient)?[-_ ](?:norm[-_ ])?clip(?:ping)?|clip(?:ping)? (?:of )?(?:the )?gradients?)(?: norm)?"
        r"|max[-_ ]grad[-_ ]norm",
        (0.3, 1.0, 3.0),
        1.0,
        off=1e6,
    ),
    _numeric("entropy_coeff", r"entropy(?:[-_ ](?:bonus|coeff?(?:icient)?s?|regulari[sz]ation|term))?", (0, 0.01), 0),
    _numeric("weight_decay", r"weight[-_ ]decays?", (0, 0.01, 0.1), 0),
    _numeric(
        "lr_warmup_steps",
        r"(?:(?:lr|learning[- ]rate)[_ ])?warm(?:ing)?[-_ ]?ups?(?:[_ ]steps)?(?: (?:of|for) the learning rate)?",
        (0, 5, 10),
        0,
    ),
    _numeric(
        "total_steps",
        r"total[_ ]steps|max[_ ]steps|(?:number|amount) of (?:training |optimi[sz]er )?(?:steps|updates)"
        r"|(?:longer|shorter) (?:training|runs)|train(?:ing)? (?:for )?(?:longer|shorter)|training (?:length|duration)",
        (15, 30, 60),
        30,
        note="arms differ in how long they train, so in episodes, tokens and time as well",
        compared_at=ComparedAt.STEPS,
    ),
    _numeric(
        "max_response_length",
        r"max[_ ]response[_ ]length|max(?:imum)?[-_ ](?:new[-_ ])?tokens|token limits?"
        r"|(?:(?:max(?:imum|imal)?|longer|shorter) )?(?:response|answer|completion|reply|output|generation)[- ]lengths?"
        r"|(?:longer|shorter) (?:responses|answers|completions|replies|outputs|generations)",
        (DEFAULT_MAX_TOKENS // 2, DEFAULT_MAX_TOKENS, 2 * DEFAULT_MAX_TOKENS),
        DEFAULT_MAX_TOKENS,
        note="each arm's program asks for at most so many tokens per reply, in training and when it is scored",
    ),
    _numeric(
        "lora_rank",
        r"lora(?:[-_ ]?ranks?)?\b|adapter ranks?",
        (4, 8, 16),
        8,
        off=0,
        note="every rank trains with the same learning rate; adapters want a higher one than full parameters",
    ),
    _named(
        "model",
        r"model[- ]sizes?|size of the model|(?:larger|bigger|smaller) (?:base )?models?\b|nano|micro\b(?!-)(?! ?batch)",
        {name: {"model": name} for name in LR_OF_BUNDLED_MODELS},
        note="both models train with the same settings, learning rate included",
    ),
    _named(
        "policy_loss",
        r"policy[-_ ]loss(?:es)?",
        {name: {"policy_loss": name} for name in ("vanilla", "gspo", "cispo", "sapo")},
    ),
    _named(
        "loss_agg_mode",
        r"(?:loss[-_ ])?(?:agg(?:regation)?[-_ ]?(?:modes?)?)\b|token-mean|seq-mean",
        {
            mode: {"loss_agg_mode": mode}
            for mode in (
                "token-mean",
                "seq-mean-token-mean",
                "seq-mean-token-sum",
                "seq-mean-token-sum-norm",
                "token-sum",
            )
        },
    ),
    _named(
        "kl_loss_type",
        r"kl[-_ ](?:loss[-_ ])?(?:types?|kinds?|estimators?)",
        {
            kind: {"use_kl_loss": True, "kl_loss_coef": KL_COEFFICIENT, "kl_loss_type": kind}
            for kind in ("k1", "k2", "k3")
        },
        note=f"every arm has a KL loss term of coefficient {KL_COEFFICIENT}",
    ),
    _named(
        "norm_adv_by_std_in_grpo",
        r"(?:std|standard[- ]deviation|advantage)[- ]normali[sz](?:ation|ing|ed)|norm_adv_by_std_in_grpo"
        r"|(?:advantages? (?:be |are |is |to be )?)?normali[sz](?:e|ed|ing|ation)(?: of)?(?: the)?(?: advantages?)?"
        r"(?: (?:by|with) (?:the |their )?(?:std|standard deviation)(?: of (?:the|their) group)?)(?! ?layers?)"
        r"|normali[sz](?:e|ed|ing|ation of) (?:the )?advantages?",
        {"std-norm": {"norm_adv_by_std_in_grpo": True}, "no-std-norm": {"norm_adv_by_std_in_grpo": False}},
    ),
    _named(
        "algorithm",
        r"(?:(?:rl|reinforcement learning|training) )?algorithms?|advantage estimators?|estimators?",
        {
            "grpo": {"algorithm": "grpo"},
            "rloo": {"algorithm": "rloo"},
            "reinforce++": {"algorithm": "reinforce_plus_plus"},
        },
    ),
)

ALGORITHMS: tuple[tuple[str, str], ...] = (
    ("dr.grpo", r"dr\.? ?-?grpo"),
    ("reinforce++-baseline", r"reinforce(?:\+\+|_plus_plus| plus plus)[-_ ]baseline"),
    ("reinforce++", r"reinforce(?:\+\+|_plus_plus| ?plus ?plus)"),
    ("gspo", r"gspo"),
    ("cispo", r"cispo"),
    ("dapo", r"dapo"),
    ("sapo", r"sapo"),
    ("dppo", r"dppo"),
    ("rloo", r"rloo"),
    ("grpo", r"grpo"),
    ("opo", r"opo"),
    ("gpg", r"gpg"),
)
"""Names as people write them, longer ones before those they contain."""

_ALGORITHM_SETTINGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": {"algorithm": "grpo"},
        # Dr.GRPO (arXiv 2503.20783): no division by the group's deviation, none by the length of the answer.
        "dr.grpo": {
            "algorithm": "grpo", "norm_adv_by_std_in_grpo": False, "loss_agg_mode": "seq-mean-token-sum-norm",
        },
        "reinforce++": {"algorithm": "reinforce_plus_plus"},
        "reinforce++-baseline": {"algorithm": "reinforce_plus_plus_baseline"},
        # GSPO (arXiv 2507.18071) weighs whole sequences.
        "gspo": {"algorithm": "grpo", "policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
        "cispo": {"algorithm": "grpo", "policy_loss": "cispo"},
        # DAPO (arXiv 2503.14476) without its dynamic sampling: clip-higher and one mean over all tokens.
        "dapo": {"algorithm": "grpo", "clip_ratio_high": 0.28, "loss_agg_mode": "token-mean"},
        "sapo": {"algorithm": "grpo", "policy_loss": "sapo"},
        "dppo": {"algorithm": "grpo", "policy_loss": "dppo_tv"},
        "rloo": {"algorithm": "rloo"},
        "opo": {"algorithm": "opo"},
        "gpg": {"algorithm": "gpg", "policy_loss": "gpg"},
    }
)  # fmt: skip


def algorithm_level(name: str) -> Level:
    return Level(name, {"algorithm": name}, _ALGORITHM_SETTINGS[name])
