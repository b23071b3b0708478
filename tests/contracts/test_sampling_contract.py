"""SamplingService: which rollouts of a scored group are kept, and why, as a pure function of the request."""

import random
import uuid

import grpc
import pytest

from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc

SERVICES = ("sampling",)


@pytest.fixture
def stub(channel):
    return sampling_pb2_grpc.SamplingServiceStub(channel)


def rollouts(positives, negatives, unscorable=0):
    """A group with clean and faulty rollouts of both kinds."""
    rewards = [1.0] * positives + [0.0] * negatives + [None] * unscorable
    return [
        sampling_pb2.ScoredRollout(
            trajectory_id=f"t{number:02}",
            reward=reward,
            tool_calls=2,
            failed_tool_calls=number % 3,
            answer_tags=1,
            turns=3,
        )
        for number, reward in enumerate(rewards)
    ]


def request(group, keep=4, *, seed=1, enabled=True, **fields):
    return sampling_pb2.ResampleGroupRequest(
        request_id=uuid.uuid4().hex, group_id="g", rollouts=group, keep=keep, seed=seed, enabled=enabled, **fields
    )


def reasons(response):
    return {d.trajectory_id: sampling_pb2.Decision.Reason.Name(d.reason) for d in response.decisions}


def test_half_of_the_negatives_and_the_rest_positives_are_kept(stub):
    response = stub.ResampleGroup(request(rollouts(10, 6), keep=8), timeout=30)
    kept = [int(trajectory_id[1:]) for trajectory_id in response.kept_ids]
    assert kept == sorted(kept)
    assert (sum(number < 10 for number in kept), sum(number >= 10 for number in kept)) == (5, 3)
    assert response.group_id == "g"
    assert not response.rejected


def test_every_rollout_gets_a_decision_with_its_penalties(stub):
    group = rollouts(5, 3, unscorable=1)
    response = stub.ResampleGroup(request(group), timeout=30)
    assert [d.trajectory_id for d in response.decisions] == [r.trajectory_id for r in group]
    assert {d.trajectory_id for d in response.decisions if d.kept} == set(response.kept_ids)
    assert [d.p_err for d in response.decisions] == [number % 3 / 2 for number in range(9)]
    assert all(d.p_format == 0 for d in response.decisions)


def test_unscorable_rollouts_are_never_kept(stub):
    response = stub.ResampleGroup(request(rollouts(2, 2, unscorable=4), keep=6), timeout=30)
    assert list(response.kept_ids) == ["t00", "t01", "t02", "t03"]
    assert reasons(response)["t04"] == "REASON_UNSCORABLE"
    assert reasons(response)["t00"] == "REASON_KEPT_ALL"


@pytest.mark.parametrize(("positives", "negatives"), [(8, 0), (0, 8)])
def test_group_of_equal_rewards_is_rejected(stub, positives, negatives):
    assert stub.ResampleGroup(request(rollouts(positives, negatives)), timeout=30).rejected


def test_retry_and_another_order_give_the_same_answer(stub):
    group = rollouts(9, 7)
    first = stub.ResampleGroup(request(group), timeout=30)
    shuffled = random.Random(0).sample(group, len(group))
    assert stub.ResampleGroup(request(group), timeout=30) == first
    assert stub.ResampleGroup(request(shuffled), timeout=30) == first


def test_seed_changes_the_choice(stub):
    group = rollouts(12, 12)
    choices = {tuple(stub.ResampleGroup(request(group, seed=seed), timeout=30).kept_ids) for seed in range(8)}
    assert len(choices) > 1


def test_switched_off_it_keeps_at_random_whatever_the_reward(stub):
    response = stub.ResampleGroup(request(rollouts(8, 8), enabled=False), timeout=30)
    assert set(reasons(response).values()) == {"REASON_KEPT_RANDOM", "REASON_DROPPED_RANDOM"}
    assert len(response.kept_ids) == 4


@pytest.mark.parametrize(
    "bad",
    [
        request(rollouts(2, 2), keep=0),
        request(rollouts(2, 2) + rollouts(1, 0)),
        request(rollouts(4, 4), epsilon=0.0),
        request(rollouts(4, 4), epsilon=float("nan")),
    ],
)
def test_unusable_request_is_refused(stub, bad):
    with pytest.raises(grpc.RpcError) as caught:
        stub.ResampleGroup(bad, timeout=30)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
