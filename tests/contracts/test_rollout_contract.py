"""RolloutService: trajectories as they finish, real tool calls, cancellation, weight updates, retries.

The policy is scripted (see hosts/rollout_host.py), everything else is real; tools run in a real sandbox service.
"""

import time
import uuid

import grpc
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc

SERVICES = ("rollout",)

GENERATE = "/rstar.rollout.v1.RolloutService/GenerateGroups"


@pytest.fixture
def stub(channel):
    return rollout_pb2_grpc.RolloutServiceStub(channel)


@pytest.fixture
def running_programs(tool_sandbox):
    """How many programs the sandbox runs."""
    with tool_sandbox.channel() as channel:
        sandbox = sandbox_pb2_grpc.SandboxServiceStub(channel)
        yield lambda: sandbox.GetCapacity(sandbox_pb2.GetCapacityRequest(), timeout=60).running


def request(*problem_ids, samples=1, tokens=4000, turns=4, tools=True, **fields):
    return rollout_pb2.GenerateGroupsRequest(
        **{"request_id": uuid.uuid4().hex, **fields},
        problems=[
            rollout_pb2.Problem(problem_id=name, group_id=f"group of {name}", prompt="What is 6*7?", samples=samples)
            for name in problem_ids
        ],
        sampling=rollout_pb2.SamplingParams(temperature=1.0, seed=1, log_probs=True),
        limits=rollout_pb2.RolloutLimits(max_turns=turns, max_response_tokens=tokens),
        tools=rollout_pb2.ToolSettings(enabled=tools, wall_seconds=90),
    )


def trajectories(stub, asked, timeout=120):
    events = stub.GenerateGroups(asked, timeout=timeout)
    return [event.trajectory for event in events if event.WhichOneof("event") == "trajectory"]


def end_reason(trajectory):
    return common_pb2.EndReason.Name(trajectory.end_reason).removeprefix("END_REASON_")


def text(trajectory, kind):
    return "".join(segment.text for segment in trajectory.segments if segment.kind == kind)


def test_every_sample_of_every_problem_comes_once(stub):
    found = trajectories(stub, request("answer a", "answer b", samples=3))
    assert sorted((t.problem_id, t.group_id, t.sample_index) for t in found) == [
        (f"answer {name}", f"group of answer {name}", index) for name in "ab" for index in range(3)
    ]
    assert len({t.trajectory_id for t in found}) == 6
    assert {end_reason(t) for t in found} == {"ANSWERED"}


def test_lost_samples_can_be_asked_for_alone(stub):
    asked = request("answer a", samples=2)
    asked.problems[0].first_sample_index = 5
    found = trajectories(stub, asked)
    assert {t.sample_index: text(t, common_pb2.SPAN_KIND_POLICY).count("\\boxed{4") for t in found} == {5: 1, 6: 1}


def test_tool_call_runs_in_the_sandbox_and_its_result_carries_no_loss(stub):
    (trajectory,) = trajectories(stub, request("tool a"))
    (call,) = trajectory.tool_calls
    assert call.status == common_pb2.TOOL_STATUS_OK
    assert "42" in call.response
    assert "42" in text(trajectory, common_pb2.SPAN_KIND_TOOL)
    assert (trajectory.turns, end_reason(trajectory)) == (2, "ANSWERED")
    for span in trajectory.spans:
        assert bool(span.log_probs) == (span.kind == common_pb2.SPAN_KIND_POLICY)
        assert len(span.log_probs) in (0, len(span.token_ids))


def test_disabled_tools_are_neither_named_nor_run(stub):
    (trajectory,) = trajectories(stub, request("tool a", tools=False))
    assert "execute_python_code" not in text(trajectory, common_pb2.SPAN_KIND_PROMPT)
    assert not any(call.status == common_pb2.TOOL_STATUS_OK for call in trajectory.tool_calls)


def test_token_limit_holds_and_ends_as_truncated(stub):
    (trajectory,) = trajectories(stub, request("long a", tokens=100))
    kinds = [span.kind for span in trajectory.spans]
    response = list(trajectory.spans)[kinds.index(common_pb2.SPAN_KIND_POLICY) :]
    assert sum(len(span.token_ids) for span in response) <= 100
    assert end_reason(trajectory) == "TRUNCATED"


def test_turn_limit_has_its_own_end_reason(stub):
    (trajectory,) = trajectories(stub, request("tool a", turns=1))
    assert (end_reason(trajectory), trajectory.turns) == ("TURN_LIMIT", 1)


def test_repeated_request_gives_the_same_tokens(stub):
    asked = request("tool a", "answer b", samples=2)
    runs = [{(t.problem_id, t.sample_index): list(t.spans) for t in trajectories(stub, asked)} for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 4


def test_finished_trajectories_do_not_wait_for_slow_ones(stub):
    stream = stub.GenerateGroups(request("slow a", "answer b"), timeout=60)
    first = next(event.trajectory for event in stream if event.WhichOneof("event") == "trajectory")
    stream.cancel()
    assert first.problem_id == "answer b"


def test_progress_counts_rollouts_and_tokens(stub):
    events = list(stub.GenerateGroups(request("answer a", samples=4), timeout=60))
    last = [event.progress for event in events if event.WhichOneof("event") == "progress"][-1]
    assert (last.rollouts_total, last.rollouts_finished) == (4, 4)
    assert last.tokens_generated > 0


def test_cancelled_call_frees_the_sandbox_too(server, stub, running_programs, eventually):
    stream = stub.GenerateGroups(request("slow a", "slow b"))
    eventually(lambda: running_programs() == 2, "both programs run")
    stream.cancel()
    eventually(lambda: running_programs() == 0, "the programs were stopped")
    eventually(lambda: server.metric("rstar_grpc_calls_in_progress", method=GENERATE) == 0, "the call has left")


def test_deadline_of_the_caller_frees_the_sandbox_too(stub, running_programs, eventually):
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        trajectories(stub, request("slow a"), timeout=2.0)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 30
    eventually(lambda: running_programs() == 0, "the program was stopped")


def test_rollouts_cancelled_by_request_id_come_back_as_cancelled_without_waiting_for_tools(
    stub, running_programs, eventually
):
    asked = request("slow a")
    stream = stub.GenerateGroups(asked, timeout=15)  # the program would take a minute
    eventually(lambda: running_programs() == 1, "the program runs")
    answer = stub.CancelRollouts(rollout_pb2.CancelRolloutsRequest(request_id=asked.request_id), timeout=30)
    assert answer.cancelled == 1
    found = [event.trajectory for event in stream if event.WhichOneof("event") == "trajectory"]
    assert [end_reason(t) for t in found] == ["CANCELLED"]
    eventually(lambda: running_programs() == 0, "the program was stopped")


def test_rollouts_that_a_request_does_not_wait_for_go_on_in_another(stub, running_programs, eventually):
    """A rollout that was stopped before its call or in it makes the call there; what it had is unchanged."""
    asked = request("answer a", "slow a")
    asked.stop_after_groups = 1
    found = {t.problem_id: t for t in trajectories(stub, asked, timeout=60)}  # the program would take a minute
    assert {name: end_reason(t) for name, t in found.items()} == {"answer a": "ANSWERED", "slow a": "CANCELLED"}
    eventually(lambda: running_programs() == 0, "the program was stopped")
    asked = request("slow a")
    asked.problems[0].partial.append(found["slow a"])
    stream = stub.GenerateGroups(asked, timeout=60)
    eventually(lambda: running_programs() == 1, "the program runs")
    stub.CancelRollouts(rollout_pb2.CancelRolloutsRequest(request_id=asked.request_id), timeout=30)
    (again,) = [event.trajectory for event in stream if event.WhichOneof("event") == "trajectory"]
    before = list(found["slow a"].spans)
    assert list(again.spans)[: len(before)] == before


def test_rollout_that_ended_by_itself_is_not_gone_on_with(stub):
    (ended,) = trajectories(stub, request("answer a"))
    asked = request("answer a")
    asked.problems[0].partial.append(ended)
    with pytest.raises(grpc.RpcError) as caught:
        trajectories(stub, asked)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "ended as answered" in caught.value.details()


def test_cancelling_what_is_unknown_cancels_nothing(stub):
    assert stub.CancelRollouts(rollout_pb2.CancelRolloutsRequest(request_id="unknown"), timeout=30).cancelled == 0


def test_request_that_runs_already_is_not_begun_again(stub, running_programs, eventually):
    asked = request("slow a")
    first = stub.GenerateGroups(asked)
    eventually(lambda: running_programs() == 1, "the program runs")
    with pytest.raises(grpc.RpcError) as caught:
        trajectories(stub, asked)
    assert caught.value.code() == grpc.StatusCode.ALREADY_EXISTS
    first.cancel()
    eventually(lambda: running_programs() == 0, "the program was stopped")


def test_paused_service_takes_no_work_until_resumed(stub):
    stub.Pause(rollout_pb2.PauseRequest(), timeout=30)
    assert stub.GetEngineState(rollout_pb2.GetEngineStateRequest(), timeout=30).engines[0].paused
    with pytest.raises(grpc.RpcError) as caught:
        trajectories(stub, request("answer a"), timeout=1.0)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    stub.Resume(rollout_pb2.ResumeRequest(), timeout=30)
    assert len(trajectories(stub, request("answer a"))) == 1


class Weights:
    """An update of the engine to its next version."""

    def __init__(self, stub, folder):
        self._stub = stub
        self._source = rollout_pb2.FileSource(path=str(folder))
        state = stub.GetEngineState(rollout_pb2.GetEngineStateRequest(), timeout=30)
        self.version = state.engines[0].weight_version + 1

    def begin(self):
        request = rollout_pb2.BeginWeightUpdateRequest(version=self.version, file=self._source)
        self._stub.BeginWeightUpdate(request, timeout=30)

    def commit(self, checksum):
        request = rollout_pb2.CommitWeightUpdateRequest(version=self.version, checksum=checksum)
        return self._stub.CommitWeightUpdate(request, timeout=30).version


def generation_is_refused(stub, **fields):
    with pytest.raises(grpc.RpcError) as caught:
        trajectories(stub, request("answer a", **fields))
    return caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_weights_are_in_doubt_between_begin_and_commit(stub, tmp_path):
    weights = Weights(stub, tmp_path)
    weights.begin()
    assert generation_is_refused(stub)
    assert weights.commit("sum") == weights.version
    (trajectory,) = trajectories(stub, request("answer a", expected_weight_version=weights.version))
    generated = {span.weight_version for span in trajectory.spans if span.kind == common_pb2.SPAN_KIND_POLICY}
    assert generated == {weights.version}


def test_other_weights_than_expected_are_refused(stub):
    assert generation_is_refused(stub, expected_weight_version=999)


def test_failed_update_refuses_generation_until_one_succeeds(stub, tmp_path):
    weights = Weights(stub, tmp_path)
    weights.begin()
    with pytest.raises(grpc.RpcError) as caught:
        weights.commit("")  # stands for a checksum that does not match
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert generation_is_refused(stub)
    weights.begin()
    weights.commit("sum")
    assert len(trajectories(stub, request("answer a"))) == 1


def test_sleeping_engines_generate_nothing_and_take_weights(stub, tmp_path):
    assert stub.GetEngineState(rollout_pb2.GetEngineStateRequest(), timeout=30).engines[0].sleeps
    stub.Sleep(rollout_pb2.SleepRequest(), timeout=30)
    assert generation_is_refused(stub)
    weights = Weights(stub, tmp_path)
    weights.begin()
    weights.commit("sum")
    stub.Wake(rollout_pb2.WakeRequest(), timeout=30)
    stub.Wake(rollout_pb2.WakeRequest(), timeout=30)  # once more does no harm
    assert len(trajectories(stub, request("answer a", expected_weight_version=weights.version))) == 1


def test_sleep_is_refused_while_requests_run(stub, running_programs, eventually):
    running = stub.GenerateGroups(request("slow a"), timeout=120)
    eventually(lambda: running_programs() == 1, "the tool runs")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Sleep(rollout_pb2.SleepRequest(), timeout=30)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    running.cancel()
    eventually(lambda: running_programs() == 0, "the program was stopped")


@pytest.mark.parametrize(
    "bad",
    [
        request("answer a", request_id=""),
        request(""),
        request("answer a", turns=0),
        request("answer a", tokens=0),
    ],
)
def test_unusable_request_is_refused(stub, bad):
    with pytest.raises(grpc.RpcError) as caught:
        trajectories(stub, bad)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
