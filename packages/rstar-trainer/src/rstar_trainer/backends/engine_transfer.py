"""Weights from the learner's GPUs to vLLM engines by vLLM's own transfer backends: NCCL (RCCL), or IPC on one device.

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
from typing import Any, Literal

import grpc
import torch
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from rstar_model.digests import parameter_digest
from rstar_model.weights import Canary, WeightManifest, combined_checksum, manifest_to_json
from rstar_protos.errors import InfrastructureError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc

__all__ = ["EngineSender", "ParameterSource", "RolloutSyncClient"]

Backend = Literal["nccl", "ipc"]
Parameters = Callable[[], Iterator[tuple[str, torch.Tensor]]]

_CALL_SECONDS = 1800.0


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
        self.digests: dict[str, str] = {}
        """Of the last pass, by name."""

    def metadata(self) -> list[ParamMeta]:
        """Names, dtype and shapes, without gathering."""
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One pass."""
        self.digests = {}
        for name, tensor in self._parameters():
            value = tensor.detach().to(self._dtype)
            if self._digest:
                self.digests[name] = parameter_digest(value)
            yield name, value


class RolloutSyncClient:
    """vLLM's `VLLMWeightSyncClient` over a RolloutService, whose engines begin and finish an update by themselves.

    Args:
        channel: to the service.
        backend: that its engines were started for.
    """

    def __init__(self, channel: grpc.Channel, backend: Backend) -> None:
        self._stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        self._backend = backend
        self.version = 0
        """Of the update under way."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """The workers meet the sender; returns when they have."""
        self._begin({"init": init_info})

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
            InfrastructureError: they hold something else.
        """
        self._begin({"manifest": manifest_to_json(manifest)})
        request = rollout_pb2.CommitWeightUpdateRequest(version=manifest.version, checksum=manifest.checksum)
        self._call(self._stub.CommitWeightUpdate, request)

    def _begin(self, settings: Mapping[str, Any]) -> None:
        source = rollout_pb2.TransferSource(backend=self._backend, settings_json=json.dumps(settings))
        request = rollout_pb2.BeginWeightUpdateRequest(version=self.version, transfer=source)
        self._call(self._stub.BeginWeightUpdate, request)

    @staticmethod
    def _call(method: Callable[..., Any], request: Any) -> None:
        try:
            method(request, timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise InfrastructureError(f"weights did not reach the engines: {error.details()}") from error


class EngineSender:
    """Sends every update of a learner to all engines of a RolloutService.

    Args:
        source: of the learner's parameters.
        client: to the service.
        backend: "nccl" between devices, "ipc" when learner and engine share them.
        rank: of this rank of the learner; rank 0 sends.
        workers: of all engines together.
        master_address: of the machine that rank 0 is on; needed by "nccl".
    """

    def __init__(
        self,
        source: ParameterSource,
        client: RolloutSyncClient,
        backend: Backend,
        rank: int = 0,
        workers: int = 1,
        master_address: str = "127.0.0.1",
    ) -> None:
        self._source, self._client, self._rank = source, client, rank
        self._init = (
            IPCTrainerInitInfo(rank=rank, packed=True)
            if backend == "ipc"
            else NCCLTrainerInitInfo(master_address, _free_port(master_address), workers + 1, rank=rank)
        )
        self._engine: Any = None

    def send(self, version: int, dtype: str, canary: Canary | None) -> WeightManifest | None:
        """Sends the parameters as they are now, and has the engines check them.

        Returns:
            What was sent, on rank 0; None on the others.

        Raises:
            InfrastructureError: the engines hold something else; they generate nothing until an update succeeds.
        """
        self._client.version = version
        if self._engine is None:
            self._engine = WeightTransferTrainerFactory.trainer_init(
                self._init, client=self._client, source=self._source
            )
        self._engine.send_weights()
        if self._rank != 0:
            return None
        digests = dict(self._source.digests)
        manifest = WeightManifest(version, combined_checksum(digests), Path(), dtype, {}, digests, canary)
        self._client.commit(manifest)
        return manifest

    def close(self) -> None:
        """Leaves the group."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None


def _as_json(update_info: Any) -> dict[str, Any]:
    """Handles of device memory travel pickled, as vLLM's own HTTP client sends them.

    The engines take them only where `VLLM_ALLOW_INSECURE_SERIALIZATION=1` is set.
    """
    values = {name: value for name, value in dict(update_info).items() if value is not None}
    if "ipc_handles" in values:
        values["ipc_handles_pickled"] = base64.b64encode(pickle.dumps(values.pop("ipc_handles"))).decode("ascii")
    return values


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as probe:
        return int(probe.getsockname()[1])
