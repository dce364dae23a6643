import pytest

from experiments_db import LeaseHeld, StoreLeaseLost, Study


def test_live_lease_keeps_others_out_and_says_who_and_how_long(store, study: Study, clock) -> None:
    store.acquire_lease(study.id, "host-a:1", ttl_s=30)
    clock.now += 20
    with pytest.raises(LeaseHeld, match="host-a:1 is at work") as held:
        store.acquire_lease(study.id, "host-b:2", ttl_s=30)
    assert held.value.owner == "host-a:1"
    assert held.value.age_s == pytest.approx(20, abs=0.1)


def test_heartbeats_keep_a_lease_alive(store, study: Study, clock) -> None:
    lease = store.acquire_lease(study.id, "a", ttl_s=30)
    for _ in range(3):
        clock.now += 20
        lease = store.heartbeat(lease)
    with pytest.raises(LeaseHeld):
        store.acquire_lease(study.id, "b", ttl_s=30)


def test_owner_renews_its_own_lease_under_the_same_token(store, study: Study, clock) -> None:
    first = store.acquire_lease(study.id, "a", ttl_s=30)
    again = store.acquire_lease(study.id, "a", ttl_s=60)
    assert (again.token, again.acquired_at, again.ttl_s) == (first.token, first.acquired_at, 60)
    assert again.heartbeat_at > first.heartbeat_at


def test_stale_lease_is_taken_over_and_the_old_owner_is_fenced_out(store, study: Study, clock) -> None:
    old = store.acquire_lease(study.id, "a", ttl_s=30)
    fenced = store.under(old)
    fenced.append_event(study.id, "x", "while it holds")
    clock.now += 31
    new = store.acquire_lease(study.id, "b", ttl_s=30)
    assert new.token == old.token + 1
    with pytest.raises(StoreLeaseLost, match="b has taken over"):
        fenced.append_event(study.id, "x", "too late")
    with pytest.raises(StoreLeaseLost):
        store.heartbeat(old)
    store.release_lease(old)
    assert store.find_lease(study.id) == new
    store.under(new).append_event(study.id, "x", "the new owner's")
    assert [event.message for event in store.list_events(study.id)] == ["while it holds", "the new owner's"]


def test_fenced_store_still_reads_after_its_lease_is_lost(store, study: Study, clock) -> None:
    lease = store.acquire_lease(study.id, "a", ttl_s=30)
    store.release_lease(lease)
    assert store.under(lease).get_study(study.id) == study
    with pytest.raises(StoreLeaseLost, match="released"):
        store.under(lease).create_study("t", planner="rules")


def test_released_lease_is_free_at_once_and_its_token_never_returns(store, study: Study) -> None:
    tokens = []
    for owner in ("a", "b", "a"):
        lease = store.acquire_lease(study.id, owner, ttl_s=30)
        assert store.find_lease(study.id) == lease
        tokens.append(lease.token)
        store.release_lease(lease)
        store.release_lease(lease)
        assert store.find_lease(study.id) is None
    assert tokens == [1, 2, 3]
