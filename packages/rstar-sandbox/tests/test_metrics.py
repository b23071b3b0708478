"""What is counted call by call, as Prometheus reads it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.metrics import ProgramMetrics
from rstar_sandbox.status import Status

Phase = sandbox_pb2.Phase


def _registry(*responses: sandbox_pb2.ExecuteResponse) -> CollectorRegistry:
    metrics, registry = ProgramMetrics(), CollectorRegistry()
    for response in responses:
        metrics.observe(response)
    registry.register(metrics)
    return registry


def _response(status: Status = Status.OK, **fields: object) -> sandbox_pb2.ExecuteResponse:
    return sandbox_pb2.ExecuteResponse(status=status.to_proto(), **fields)


def test_programs_are_counted_by_status() -> None:
    registry = _registry(_response(), _response(), _response(Status.TIMEOUT))
    assert registry.get_sample_value("rstar_sandbox_programs_total", {"status": "ok"}) == 2
    assert registry.get_sample_value("rstar_sandbox_programs_total", {"status": "timeout"}) == 1


def test_times_fall_into_cumulative_buckets() -> None:
    timings = [sandbox_pb2.Timing(queue_seconds=seconds) for seconds in (0.0, 0.02, 0.02, 200.0)]
    registry = _registry(*(_response(timing=timing) for timing in timings))

    def bucket(bound: str) -> float | None:
        return registry.get_sample_value("rstar_sandbox_queue_seconds_bucket", {"le": bound})

    assert (bucket("0.0003"), bucket("0.03"), bucket("100.0"), bucket("+Inf")) == (1, 3, 3, 4)
    assert registry.get_sample_value("rstar_sandbox_queue_seconds_count") == 4
    total = registry.get_sample_value("rstar_sandbox_queue_seconds_sum")
    assert total is not None
    assert abs(total - 200.04) < 1e-9


def test_phases_have_wall_and_cpu_time() -> None:
    timing = sandbox_pb2.Timing(
        fork=Phase(wall_seconds=0.001, cpu_seconds=0.002), reap=Phase(wall_seconds=0.5), forked_ahead=True
    )
    registry = _registry(_response(timing=timing), _response())
    assert registry.get_sample_value("rstar_sandbox_phase_seconds_sum", {"phase": "reap"}) == 0.5
    assert registry.get_sample_value("rstar_sandbox_phase_seconds_count", {"phase": "fork"}) == 1
    assert registry.get_sample_value("rstar_sandbox_phase_cpu_seconds_total", {"phase": "fork"}) == 0.002
    assert registry.get_sample_value("rstar_sandbox_forks_total", {"when": "ahead"}) == 1
    assert registry.get_sample_value("rstar_sandbox_forks_total", {"when": "late"}) == 0


def test_cut_output_and_leaked_processes_are_counted() -> None:
    registry = _registry(
        _response(stdout_truncated=True, timing=sandbox_pb2.Timing(leaked_processes=3)),
        _response(stdout_truncated=True, stderr_truncated=True),
    )
    assert registry.get_sample_value("rstar_sandbox_truncated_total", {"stream": "stdout"}) == 2
    assert registry.get_sample_value("rstar_sandbox_truncated_total", {"stream": "stderr"}) == 1
    assert registry.get_sample_value("rstar_sandbox_leaked_processes_total") == 3
