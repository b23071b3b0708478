"""The learner on DeepSpeed ranks, seen from the trainer: every call goes to all ranks, the answer is rank 0's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rstar_model.weights import WeightManifest
from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import WeightUpdateError
from rstar_trainer.backends.rank_processes import RankProcesses
from rstar_trainer.backends.zero_rank import RankSettings
from rstar_trainer.recipe import LossSettings
from rstar_trainer.sequences import WeightedSequence
from rstar_trainer.update_metrics import UpdateMetrics
from rstar_trainer.weight_target import TransferTarget

__all__ = ["ZeroLearner"]

_SHARDS = "shards"


class ZeroLearner:
    """A `Learner` whose parameters and optimizer are sharded over processes.

    Any method may raise `LearnerLostError`; the ranks are gone then.

    Args:
        settings: of its ranks.
    """

    def __init__(self, settings: RankSettings) -> None:
        self._ranks = RankProcesses(settings.learner, settings)

    def supervised_update(
        self, sequences: Sequence[WeightedSequence], learning_rate: float, micro_batch_tokens: int
    ) -> UpdateMetrics:
        """See `Learner`."""
        return self._metrics("supervised_update", list(sequences), learning_rate, micro_batch_tokens)

    def policy_update(
        self,
        sequences: Sequence[WeightedSequence],
        learning_rate: float,
        temperature: float,
        loss: LossSettings,
    ) -> UpdateMetrics:
        """See `Learner`."""
        return self._metrics("policy_update", list(sequences), learning_rate, temperature, loss)

    def reset_optimizer(self) -> None:
        """See `Learner`."""
        self._ranks.call("reset_optimizer")

    def write_weights(self, folder: Path, version: int) -> WeightManifest:
        """See `Learner`; rank 0 writes, all gather."""
        manifest: WeightManifest = self._ranks.call("write_weights", folder.absolute(), version)[0]
        return manifest

    def send_weights(self, target: TransferTarget, version: int) -> WeightManifest:
        """See `Learner`; rank 0 sends, all gather."""
        refused: str = self._ranks.call("meet_engines", target, version)[0]
        if refused:
            raise WeightUpdateError(refused)
        sent: WeightManifest | str = self._ranks.call("send_weights")[0]
        if isinstance(sent, str):
            raise WeightUpdateError(sent)
        return sent

    def save_pretrained(self, folder: Path) -> None:
        """See `Learner`."""
        self._ranks.call("save_pretrained", folder.absolute())

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """See `Learner`. DeepSpeed writes at once: nothing is left to be done later."""
        shards = folder.absolute() / _SHARDS
        shards.mkdir(parents=True, exist_ok=True)
        self._ranks.call("save_shards", shards)
        return lambda: None

    def load_saved(self, folder: Path) -> None:
        """See `Learner`.

        Raises:
            UserInputError: another learner wrote it.
        """
        shards = folder.absolute() / _SHARDS
        if not shards.is_dir():
            raise UserInputError("checkpoint", str(folder), "one that a learner on DeepSpeed ranks has written")
        self._ranks.call("load_shards", shards)

    def process_ids(self) -> list[int]:
        """Of the ranks."""
        return self._ranks.call("process_id")

    def close(self) -> None:
        """Ends the ranks."""
        self._ranks.end()

    def _metrics(self, method: str, *arguments: object) -> UpdateMetrics:
        metrics: UpdateMetrics = self._ranks.call(method, *arguments)[0]
        return metrics
