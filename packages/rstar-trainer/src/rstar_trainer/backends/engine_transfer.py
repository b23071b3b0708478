"""Weights from the learner to vLLM engines by vLLM's transfer API: shared memory, NCCL (RCCL), or IPC on one device.

vLLM's trainer side does the sending; it is given a source of parameters and a client that asks the engines to receive.
Here the source gathers one parameter at a time and takes its digest on the way, and the client is the RolloutService.
Called on every rank of the learner: all of them gather, rank 0 sends.
"""

from __future__ import annotations

import base64
import json
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import torch
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, TrainerWeightTransferEngine, WeightSource
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from rstar_model.digests import parameter_digest
from rstar_model.weights import Canary, WeightManifest, combined_checksum, manifest_to_json
from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import open_sync_channel
from rstar_rollout.engines.base import WeightUpdateError
from rstar_trainer.backends.nccl_sender import HeldPortSender
from rstar_trainer.backends.shared_memory_sender import SharedMemoryInitInfo, SharedMemorySender
from rstar_trainer.weight_target import BACKENDS, TransferTarget

__all__ = ["EngineSender", "ParameterSource", "RolloutSyncClient"]

Parameters = Callable[[], Iterator[tuple[str, torch.Tensor]]]


class ParameterSource(WeightSource):
    """Parameters in the engines' dtype, gathered one at a time.

    Args:
        parameters: makes a fresh pass over names and whole tensors; a collective when they are sharded.
        shapes: of all of them, in the order of a pass.
        dtype: that engines hold them in.
        digest: whether to take digests, which the sender needs and other ranks do not.
    """

    def __init__(
        self, parameters: Parameters, shapes: Sequence[tuple[str, Sequence[int]]], dtype: torch.dtype, *, digest: bool
    ) -> None:
        self._parameters, self._dtype, self._digest = parameters, dtype, digest
        self._metadata = [ParamMeta(name, dtype, tuple(shape)) for name, shape in shapes]
        self._pass: Iterator[tuple[str, torch.Tensor]] | None = None
        self.digests: dict[str, str] = {}
        """Of the last pass, by name."""

    def metadata(self) -> list[ParamMeta]:
        """Names, dtype and shapes, without gathering."""
        return self._metadata

    def expect_pass(self) -> None:
        """The next pass is of another update than the last one."""
        self._pass = None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One pass."""
        self._pass = self._one_pass()
        return self._pass

    def rest(self) -> None:
        """Takes the part of this rank in what is left of a pass that was given up, or in all of it."""
        for _ in self if self._pass is None else self._pass:
            pass

    def _one_pass(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.digests = {}
        for name, tensor in self._parameters():
            # A copy: a sender collects several, and a gathered one is valid until the next is asked for.
            value = tensor.detach().to(self._dtype, copy=True)
            if self._digest:
                self.digests[name] = parameter_digest(value)
            yield name, value


class RolloutSyncClient:
    """vLLM's `VLLMWeightSyncClient` over a RolloutService, whose engines begin and finish an update by themselves.

    Args:
        channel: to the service.
        target: whose engines they are.
    """

    def __init__(self, channel: grpc.Channel, target: TransferTarget) -> None:
        self._channel, self._target = channel, target
        self._stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        self.version = 0
        """Of the update under way."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """The workers meet the sender; returns when they have."""
        self._begin({"workers": self._target.workers, "init": init_info})

    def meet_again(self) -> None:
        """The engines are still those that have met the sender.

        Raises:
            WeightUpdateError: they are not.
        """
        self._begin({"workers": self._target.workers})

    def start_weight_update(self) -> None:
        """Part of the first `update_weights`."""

    def update_weights(self, update_info: Any) -> None:
        """The workers receive; returns when they have."""
        self._begin({"update": _as_json(update_info)})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Part of `commit`, which knows what was sent."""

    def commit(self, manifest: WeightManifest) -> None:
        """The engines check what they have received, and generate with it.

        Raises:
            WeightUpdateError: they hold something else.
        """
        self._begin({"manifest": manifest_to_json(manifest)})
        request = rollout_pb2.CommitWeightUpdateRequest(version=manifest.version, checksum=manifest.checksum)
        self._call(self._stub.CommitWeightUpdate, request)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def _begin(self, settings: Mapping[str, Any]) -> None:
        backend = BACKENDS[self._target.transfer]
        source = rollout_pb2.TransferSource(backend=backend, settings_json=json.dumps(settings))
        request = rollout_pb2.BeginWeightUpdateRequest(version=self.version, transfer=source)
        self._call(self._stub.BeginWeightUpdate, request)

    def _call(self, method: Callable[..., Any], request: Any) -> None:
        try:
            method(request, timeout=self._target.seconds)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise WeightUpdateError(str(error.details())) from error
            reason = f"{error.code().name}: {error.details()}"
            raise ServiceUnavailableError(f"weights did not reach the engines: {reason}") from error


class EngineSender:
    """Sends updates of a learner to all engines of a RolloutService.

    Every update is `meet`, then `send`, each on all ranks. What `meet` refuses leaves the ranks as they were. After any
    failure the next `meet` begins from nothing.

    Args:
        source: of the learner's parameters.
        rank: of this rank of the learner; rank 0 sends.
        address: of the machine that rank 0 is on, as engines reach it; None: found out.
    """

    def __init__(self, source: ParameterSource, rank: int = 0, address: str | None = None) -> None:
        self._source, self._rank, self._address = source, rank, address
        self._target: TransferTarget | None = None
        self._client: RolloutSyncClient | None = None
        self._engine: TrainerWeightTransferEngine[Any] | None = None

    def meet(self, target: TransferTarget, version: int) -> None:
        """Makes sure that all engines expect what `send` sends; nothing is gathered yet.

        Raises:
            WeightUpdateError: the engines refuse.
            ServiceUnavailableError: the service is away.
        """
        try:
            if self._engine is not None and target == self._target:
                assert self._client is not None, "made with the engine"
                self._client.version = version
                if self._rank == 0:
                    self._client.meet_again()
                return
            self.close()
            self._client = RolloutSyncClient(open_sync_channel(target.endpoint, target.security), target)
            self._client.version = version
            self._engine = self._made(target, self._client)
            self._target = target
        except BaseException:
            self._forget()
            raise

    def send(self, dtype: str, canary: Canary | None) -> WeightManifest | None:
        """Sends the parameters as they are now, and has the engines check them.

        Returns:
            What was sent, on rank 0; None on the others.

        Raises:
            WeightUpdateError: the engines hold something else; they generate nothing until an update succeeds.
            ServiceUnavailableError: the service is away.
        """
        assert self._engine is not None and self._client is not None, "met before"  # noqa: PT018  one state
        self._source.expect_pass()
        try:
            self._engine.send_weights()
            if self._rank != 0:
                return None
            digests = dict(self._source.digests)
            version = self._client.version
            manifest = WeightManifest(version, combined_checksum(digests), Path(), dtype, {}, digests, canary)
            self._client.commit(manifest)
        except BaseException:
            # Other ranks are still gathering, and this one has a part in it.
            self._source.rest()
            self._forget()
            raise
        return manifest

    def close(self) -> None:
        """Leaves the group."""
        if self._engine is not None:
            self._engine.shutdown()
        self._forget()

    def _forget(self) -> None:
        """Without a word to those in the group, who may not answer."""
        client, self._client, self._engine, self._target = self._client, None, None, None
        if client is not None:
            client.close()

    def _made(self, target: TransferTarget, client: RolloutSyncClient) -> TrainerWeightTransferEngine[Any]:
        rank, source = self._rank, self._source
        if target.transfer == "shared_memory":
            return SharedMemorySender.trainer_init(SharedMemoryInitInfo(rank=rank), client=client, source=source)
        if target.transfer == "nccl":
            address = self._address or own_address(target.endpoint)
            nccl = NCCLTrainerInitInfo(address, 0, target.workers + 1, rank=rank)
            return HeldPortSender.trainer_init(nccl, client=client, source=source)
        ipc = IPCTrainerInitInfo(rank=rank, packed=True)
        return WeightTransferTrainerFactory.trainer_init(ipc, client=client, source=source)


def own_address(endpoint: str) -> str:
    """Address of this machine, as the service sees it that is at an endpoint."""
    if endpoint.startswith("unix:"):
        return "127.0.0.1"
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    # Nothing is sent: the system says from which of its addresses it would be.
    family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def _as_json(update_info: Any) -> dict[str, Any]:
    """Handles of device memory travel pickled, as vLLM's own HTTP client sends them.

    The engines take them only where `VLLM_ALLOW_INSECURE_SERIALIZATION=1` is set.
    """
    values = {name: value for name, value in dict(update_info).items() if value is not None}
    if "ipc_handles" in values:
        values["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(values.pop("ipc_handles"))).decode("ascii")
    return values
