"""vLLM's NCCL (RCCL) sender, at a port that cannot be lost.

vLLM's own takes the number of a port that somebody has found free before, and opens it later. Here the system chooses
the port when it is opened, it stays open, and the workers are told its number.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from typing import Any, Self

import torch
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient, WeightSource
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLTrainerWeightTransferEngine
from vllm.utils.nccl import unpinned_nccl_env

from rstar_trainer.bounded import in_background

__all__ = ["HeldPortSender", "meet_workers"]

_MEETING_SECONDS = 300


class HeldPortSender(NCCLTrainerWeightTransferEngine):
    """As vLLM's; the port of its init info is not looked at."""

    @classmethod
    def trainer_init(
        cls, init_info: NCCLTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> Self:
        """A sender that has met its workers. Of several ranks only rank 0 meets them.

        Raises:
            Exception: what the client raises when the engines refuse.
        """
        assert source is not None, "there is nothing to send"
        made = cls(
            client=client,
            source=source,
            is_sender=init_info.is_sender,
            packed=init_info.packed,
            packed_buffer_size_bytes=init_info.packed_buffer_size_bytes,
            packed_num_buffers=init_info.packed_num_buffers,
        )
        if made.is_sender:

            def tell(address: str, port: int) -> None:
                told = NCCLWeightTransferInitInfo(
                    master_address=address,
                    master_port=port,
                    rank_offset=1,
                    world_size=init_info.world_size,
                    packed=init_info.packed,
                    packed_buffer_size_bytes=init_info.packed_buffer_size_bytes,
                    packed_num_buffers=init_info.packed_num_buffers,
                )
                client.init_weight_transfer_engine(worker_init_payload(told))

            made.model_update_group = meet_workers(init_info.master_address, init_info.world_size, tell, _communicator)
        return made


def meet_workers(
    address: str,
    ranks: int,
    tell: Callable[[str, int], None],
    finish: Callable[[StatelessProcessGroup], Any],
    seconds: int = _MEETING_SECONDS,
) -> Any:
    """Opens a meeting place at a port of the system's choice, and waits there for the workers.

    Args:
        address: of this machine, as workers reach it.
        ranks: that will meet, this one included.
        tell: given address and port, has the workers come; returns when they have done their part.
        finish: this rank's part, once all are there.
        seconds: longest wait for them.

    Returns:
        What `finish` returns.

    Raises:
        Exception: the first that either side raises; the other is not waited for.
    """
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = int(listener.getsockname()[1])

    def meet() -> Any:
        place: Mapping[str, Any] = {"store_timeout": seconds, "listen_socket": listener}
        return finish(StatelessProcessGroup.create(address, port, 0, ranks, **place))

    # Either may hang in NCCL when the other side is gone.
    sides = [in_background("workers to meet", partial(tell, address, port)), in_background("sender to meet", meet)]
    for done in wait(sides, return_when=FIRST_EXCEPTION).done:
        done.result()
    return sides[1].result()


def _communicator(group: StatelessProcessGroup) -> PyNcclCommunicator:
    with unpinned_nccl_env():
        return PyNcclCommunicator(group, device=torch.accelerator.current_device_index())
