"""SamplingService answers exactly as the pure function does."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_protos.service import ServeSettings, open_channel, start_server
from rstar_rollout.client import SamplingClient
from rstar_rollout.roc import Mode, ScoredRollout, resample_on_correct
from rstar_rollout.roc_groups import select_groups
from rstar_rollout.sampling_service import SamplingServicer


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    def register(server: grpc.aio.Server) -> None:
        sampling_pb2_grpc.add_SamplingServiceServicer_to_server(SamplingServicer(), server)

    socket = f"unix:/tmp/rstar-{uuid.uuid4().hex[:12]}.sock"
    running = await start_server(ServeSettings(listen=socket), register, [sampling_pb2.DESCRIPTOR])
    opened = open_channel(running.listening)
    yield opened
    await opened.close()
    await running.stop(0)


def rollouts(seed: int) -> list[ScoredRollout]:
    source = random.Random(seed)
    return [
        ScoredRollout(f"t{i}", source.choice([None, 0.0, 1.0]), calls, source.randint(0, calls), 1, 2)
        for i in range(source.randint(0, 40))
        for calls in [source.randint(0, 4)]
    ]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("mode", Mode)
async def test_service_and_function_agree(channel: grpc.aio.Channel, enabled: bool, mode: Mode):
    client = SamplingClient(channel)
    options = {"mode": mode, "minimum_positives": 3, "minimum_negatives": 0}
    for seed in range(20):
        group = rollouts(seed)
        expected = resample_on_correct(group, 8, seed=seed, group_id="g", epsilon=0.3, enabled=enabled, **options)
        assert await client.resample("g", group, 8, seed, 0.3, enabled, **options) == expected


async def test_selection_of_groups_is_the_functions(channel: grpc.aio.Channel):
    client = SamplingClient(channel)
    groups = {"c": True, "a": False, "b": True}
    for done in (0, 1):
        expected = select_groups(groups, 2, rounds_done=done, max_rounds=1)
        assert await client.select_groups(groups, 2, rounds_done=done, max_rounds=1) == expected


async def test_a_group_that_comes_twice_is_refused(channel: grpc.aio.Channel):
    twice = [sampling_pb2.SelectGroupsRequest.Group(group_id="a")] * 2
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
        await sampling_pb2_grpc.SamplingServiceStub(channel).SelectGroups(
            sampling_pb2.SelectGroupsRequest(groups=twice, wanted=1)
        )


async def test_an_unknown_mode_is_refused(channel: grpc.aio.Channel):
    with pytest.raises(grpc.aio.AioRpcError, match="MODE_RELEASE"):
        await sampling_pb2_grpc.SamplingServiceStub(channel).ResampleGroup(
            sampling_pb2.ResampleGroupRequest(group_id="g", keep=1, mode=99)  # type: ignore[arg-type]
        )


async def test_absent_epsilon_is_the_default(channel: grpc.aio.Channel):
    stub = sampling_pb2_grpc.SamplingServiceStub(channel)
    scored = [sampling_pb2.ScoredRollout(trajectory_id=f"t{i}", reward=1.0, turns=1) for i in range(9)]
    request = sampling_pb2.ResampleGroupRequest(group_id="g", rollouts=scored, keep=4, seed=1, enabled=True)
    group = [ScoredRollout(f"t{i}", 1.0) for i in range(9)]
    expected = resample_on_correct(group, 4, seed=1, group_id="g")
    assert tuple((await stub.ResampleGroup(request)).kept_ids) == expected.kept_ids


async def test_bad_group_is_refused(channel: grpc.aio.Channel):
    client = SamplingClient(channel)
    with pytest.raises(UserInputError, match="keep"):
        await client.resample("g", rollouts(1), 0, 1)
