"""RewardService: verdicts by id, what is excluded rather than scored 0, retries, bad input."""

import uuid

import grpc
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc

SERVICES = ("reward",)

ANSWER = "<answer>\\boxed{42}</answer>"


@pytest.fixture
def stub(channel):
    return reward_pb2_grpc.RewardServiceStub(channel)


def request(response="", gold="42", **fields):
    return reward_pb2.ScoreRequest(request_id=uuid.uuid4().hex, gold=gold, response=response, **fields)


def status(response):
    return reward_pb2.VerdictStatus.Name(response.status).removeprefix("VERDICT_STATUS_")


def rollout(*texts, kind=common_pb2.SPAN_KIND_POLICY):
    return [reward_pb2.Segment(kind=kind, text=text) for text in texts]


@pytest.mark.parametrize(
    ("score", "verdict", "reward"),
    [
        (request(ANSWER), "CORRECT", 1),
        (request("<answer>\\boxed{41}</answer>"), "WRONG", 0),
        (request("It is 42."), "NO_ANSWER", 0),
        (request(ANSWER, end_reason=common_pb2.END_REASON_TRUNCATED), "NO_ANSWER", 0),
        (request(segments=rollout(ANSWER), end_reason=common_pb2.END_REASON_ANSWERED), "CORRECT", 1),
        (request(segments=rollout(ANSWER, kind=common_pb2.SPAN_KIND_TOOL)), "NO_ANSWER", 0),
    ],
)
def test_verdict_and_reward(stub, score, verdict, reward):
    response = stub.Score(score, timeout=60)
    assert (response.request_id, status(response)) == (score.request_id, verdict)
    assert response.HasField("reward")
    assert response.reward == reward


@pytest.mark.parametrize(
    ("score", "verdict"),
    [
        (request(ANSWER, end_reason=common_pb2.END_REASON_INFRASTRUCTURE), "UNSCORABLE"),
        (request(ANSWER, gold=""), "BAD_GOLD"),
    ],
)
def test_what_is_nobodys_answer_has_no_reward(stub, score, verdict):
    response = stub.Score(score, timeout=60)
    assert status(response) == verdict
    assert not response.HasField("reward")


def test_verdicts_of_a_stream_carry_their_ids(stub):
    scores = [request(f"<answer>\\boxed{{{number}}}</answer>", gold=str(number % 2)) for number in range(40)]
    verdicts = {response.request_id: response.reward for response in stub.ScoreMany(iter(scores), timeout=120)}
    assert verdicts == {score.request_id: float(number < 2) for number, score in enumerate(scores)}


def test_retry_with_the_same_id_is_answered_from_memory(stub):
    score = request("<answer>\\boxed{\\sqrt{1764}}</answer>")
    first = stub.Score(score, timeout=60)
    assert stub.Score(score, timeout=60) == first  # the time it took included


def test_bad_gold_answers_are_found_before_a_run(stub):
    checked = stub.CheckGold(reward_pb2.CheckGoldRequest(golds=["42", "", "1/2", " "]), timeout=60)
    assert [problem.index for problem in checked.bad] == [1, 3]
    assert all(problem.reason for problem in checked.bad)


@pytest.mark.parametrize("score", [request(ANSWER, verifier="no-such"), request(ANSWER, segments=rollout(ANSWER))])
def test_unusable_request_is_refused(stub, score):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Score(score, timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_unusable_request_of_a_stream_does_not_take_the_others_along(stub):
    bad, good = request(ANSWER, verifier="no-such"), request(ANSWER)
    verdicts = {response.request_id: status(response) for response in stub.ScoreMany(iter([bad, good]), timeout=60)}
    assert verdicts == {bad.request_id: "UNSCORABLE", good.request_id: "CORRECT"}


def test_cancelled_stream_leaves_the_server(server, stub, eventually):
    method = "/rstar.reward.v1.RewardService/ScoreMany"
    never_ending = iter(lambda: request(ANSWER), None)
    stream = stub.ScoreMany(never_ending)
    next(stream)
    stream.cancel()
    eventually(lambda: server.metric("rstar_grpc_calls_in_progress", method=method) == 0, "the stream left the server")
