"""TrainerService: where a run is, its metrics as a stream, and asking for a checkpoint or the end."""

import grpc
import pytest

from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc

SERVICES = ("trainer",)


@pytest.fixture
def stub(channel):
    return trainer_pb2_grpc.TrainerServiceStub(channel)


def status(stub):
    return stub.GetStatus(trainer_pb2.GetStatusRequest(), timeout=30)


def test_status_names_run_stage_and_step(stub):
    found = status(stub)
    assert (found.run_id, found.stage, found.step, found.stage_steps) == ("run-1", "rl-1", 3, 8)
    assert found.run_dir


def test_metrics_start_at_the_asked_step(stub):
    records = list(stub.StreamMetrics(trainer_pb2.StreamMetricsRequest(from_global_step=2), timeout=30))
    assert [(record.global_step, record.kind) for record in records] == [(2, "rl"), (3, "rl"), (3, "event")]
    assert records[0].values["reward"] == 0.5
    assert records[2].text == "an event"


def test_followed_stream_stays_open_until_its_deadline(stub):
    stream = stub.StreamMetrics(trainer_pb2.StreamMetricsRequest(follow=True), timeout=2.0)
    assert [next(stream).kind for _ in range(5)] == ["rl"] * 4 + ["event"]
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_cancelled_stream_leaves_the_server(server, stub, eventually):
    method = "/rstar.trainer.v1.TrainerService/StreamMetrics"
    stream = stub.StreamMetrics(trainer_pb2.StreamMetricsRequest(follow=True))
    next(stream)
    stream.cancel()
    eventually(lambda: server.metric("rstar_grpc_calls_in_progress", method=method) == 0, "the stream left the server")


def test_asking_for_a_checkpoint_twice_is_asking_once(stub):
    first = stub.RequestCheckpoint(trainer_pb2.RequestCheckpointRequest(), timeout=30)
    second = stub.RequestCheckpoint(trainer_pb2.RequestCheckpointRequest(), timeout=30)
    assert first.global_step == second.global_step == 4


def test_run_that_is_asked_to_stop_says_so(service, start_server):
    server = start_server(service)
    with server.channel() as channel:
        stub = trainer_pb2_grpc.TrainerServiceStub(channel)
        assert not status(stub).stopping
        for _ in range(2):
            stub.RequestStop(trainer_pb2.RequestStopRequest(), timeout=30)
        assert status(stub).stopping
