"""The meter of an episode: whatever calls do at once, limits hold and each sampled token counts once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import AttemptLimit
from swarm.rollout.usage import OpenCompletion, UsageMeter, call_seed
from swarm.types import SamplingParams

LIMITS = st.one_of(st.none(), st.integers(1, 30))
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["open", "sample", "record", "refuse", "cut"]), st.integers(1, 12), st.integers(1, 4)),
    max_size=40,
)


@given(LIMITS, LIMITS, ACTIONS)
def test_limits_hold_and_each_sampled_token_counts_once(
    max_calls: int | None, max_tokens: int | None, actions: list[tuple[str, int, int]]
) -> None:
    meter = UsageMeter(max_calls, max_tokens)
    running: list[OpenCompletion] = []
    recorded = lost = recorded_tokens = lost_tokens = 0
    for action, size, count in actions:
        if action == "open":
            try:
                params = meter.admit(SamplingParams(max_tokens=size), count)
            except AttemptLimit:
                assert meter.unrecorded.is_limited
                continue
            assert 1 <= params.max_tokens <= size
            opened = [OpenCompletion(3, params, size) for _ in range(count)]
            meter.begin(opened)
            running += opened
        elif running:
            each = running[size % len(running)]
            if action == "sample":
                each.sampled = min(each.params.max_tokens, each.sampled + count)
                continue
            running.remove(each)
            each.handed_over = action in ("record", "refuse")
            meter.settle([each], [each] if action == "record" else [])
            if action == "record":
                recorded, recorded_tokens = recorded + 1, recorded_tokens + each.sampled
            elif action == "cut" and each.sampled:
                lost, lost_tokens = lost + 1, lost_tokens + each.sampled
        begun = [each for each in running if each.sampled]
        unrecorded = meter.unrecorded
        assert unrecorded.calls == lost + len(begun)
        assert unrecorded.sampled_tokens == lost_tokens + sum(each.sampled for each in begun)
        assert (meter.calls, meter.tokens) == (recorded + lost, recorded_tokens + lost_tokens)
        assert max_calls is None or meter.calls + len(running) <= max_calls
        assert max_tokens is None or meter.tokens + sum(each.params.max_tokens for each in running) <= max_tokens


@given(st.integers(0, 2**63 - 1), st.integers(0, 100), st.integers(0, 100))
def test_calls_have_seeds_of_their_own(seed: int, one: int, other: int) -> None:
    assert 0 <= call_seed(seed, one) < 2**63
    assert (call_seed(seed, one) == call_seed(seed, other)) == (one == other)


def test_the_seed_of_a_call_is_that_of_every_version() -> None:
    assert call_seed(7, 0) == 2_523_163_049_334_028_619
