"""Weights from the learner's GPU to a real vLLM engine without files: IPC on one device, NCCL between two."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar_protos.service import EmbeddedService, open_channel
from rstar_rollout.client import RolloutClient
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

BACKENDS = ("ipc", "nccl")


@pytest.fixture(scope="module")
def model() -> Path:
    from rstar_model.fetch import fetch

    return fetch("smollm2-135m").path


@pytest.fixture(params=BACKENDS)
def service(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Backend, and endpoint of a rollout service over vLLM that was started for it."""
    if request.param == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for the learner and one for the engine")
    command = [sys.executable, "-m", "rstar_rollout", "serve", "--model", str(model), "--engine", "vllm"]
    command += ["--dtype", "bfloat16", "--kv-gib", "1", "--max-model-tokens", "640", "--sandbox", "none"]
    command += ["--no-deterministic", "--transfer-backend", request.param]
    # The learner keeps device 0; handles of device memory travel pickled, which vLLM has to be told to take.
    device = "1" if request.param == "nccl" else "0"
    env = {"CUDA_VISIBLE_DEVICES": device, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    with EmbeddedService("rollout", command, log_path=tmp_path / "rollout.log", start_seconds=600, env=env) as started:
        yield request.param, started.endpoint


def test_an_update_arrives_and_is_generated_with(service: tuple[str, str], model: Path) -> None:
    from rstar_model.policy import Policy
    from rstar_trainer.backends.engine_transfer import EngineSender, ParameterSource
    from rstar_trainer.canary import sing_canary
    from rstar_trainer.weight_target import TransferTarget

    backend, endpoint = service
    policy = Policy.load(model, device="cuda:0")

    def parameters() -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, parameter.detach()) for name, parameter in policy.model.named_parameters())

    shapes = [(name, tuple(parameter.shape)) for name, parameter in parameters()]
    source = ParameterSource(parameters, shapes, torch.bfloat16, digest=True)
    sender = EngineSender(source)
    for version in (2, 3):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.0 + 1e-3 * version)
        sender.meet(TransferTarget(backend, endpoint), version)
        manifest = sender.send("bfloat16", sing_canary(policy, tuple(range(40, 72))))
        assert manifest is not None
        assert asyncio.run(_versions(endpoint)) == {version}
    sender.close()


async def _versions(endpoint: str) -> set[int]:
    channel = open_channel(endpoint)
    try:
        found = RolloutClient(channel).generate_groups(
            [ProblemRequest("p", "p", "What is 17 plus 25?", 4)],
            SamplingSettings(seed=3),
            RolloutLimits(max_turns=1, max_response_tokens=16),
            ToolSettings(enabled=False),
        )
        spans = [span for trajectory in [t async for t in found] for span in trajectory.ledger.spans]
        return {span.weight_version for span in spans if span.weight_version is not None}
    finally:
        await channel.close()
