"""One rank that makes the same updates with every ZeRO stage, and, as rank 0, with the learner of a single process.

Arguments: model folder, folder for results, variants of the learner ("0,1,2,3" are ZeRO stages, "2offload" keeps the
optimizer on the host, "3bfloat16" holds parameters in bfloat16, "3sequence" has all ranks compute each sequence
together), tokens a micro-batch, and "resume" to go on from saved
shards as well. Rank 0 writes `results.json`: by variant, how far gradients, losses, norms and weights are from the
single process.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

from rstar_model.policy import Policy
from rstar_model.weights import write_weights
from rstar_trainer.backends.zero_rank import RankSettings, ZeroRank
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import LearnerSettings, LossSettings, ModelSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

RATE = 1e-5
OPTIMIZER = OptimizerSettings(max_grad_norm=0.5)


def sequences(vocabulary: int) -> list[WeightedSequence]:
    """Two groups of unequal rollouts with a tool result inside; a group shares its prompt."""
    rng = random.Random(11)
    found = []
    for group in range(2):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(4, 20))]
        for member in range(3):
            parts = [
                [rng.randrange(vocabulary) for _ in range(rng.randint(*span))] for span in ((2, 30), (1, 9), (1, 9))
            ]
            ids = prompt + [token for part in parts for token in part]
            mask = [False] * len(prompt) + [n != 1 for n, part in enumerate(parts) for _ in part]
            probs = [-3.0 if policy else float("nan") for policy in mask]
            found.append(WeightedSequence(tuple(ids), tuple(mask), tuple(probs), group, (1.4, -0.7, -0.7)[member]))
    return found


class ProbedRank(ZeroRank):
    """Keeps the gradient of every update, whole, before it is clipped and applied."""

    gradients: list[dict[str, torch.Tensor]]

    def _step(self, learning_rate: float) -> float:
        whole = deepspeed.utils.safe_get_full_grad
        staged = self._settings.learner.zero_stage > 0
        named = self._policy.model.named_parameters()
        self.gradients.append({name: (whole(p) if staged else p.grad).clone() for name, p in named})
        return super()._step(learning_rate)


class ProbedLearner(TorchLearner):
    """The same for the single process."""

    gradients: list[dict[str, torch.Tensor]]

    def _step(self, learning_rate: float) -> float:
        self.gradients.append({name: p.grad.clone() for name, p in self.policy.model.named_parameters()})
        return super()._step(learning_rate)


def distance(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """||found - expected|| / ||expected|| over all parameters."""
    if found.keys() != expected.keys():
        raise ValueError(sorted(found.keys() ^ expected.keys()))
    difference = sum(float((found[name] - value).double().square().sum()) for name, value in expected.items())
    return (difference / sum(float(value.double().square().sum()) for value in expected.values())) ** 0.5


def updates(learner: Any, batch: list[WeightedSequence], micro_batch_tokens: int) -> list[Any]:
    """A supervised update, a rollout step of one update, and one of two."""
    learner.gradients = []
    loss = LossSettings(micro_batch_tokens=micro_batch_tokens)
    several = loss.model_copy(update={"updates_per_step": 2})
    made = [learner.supervised_update(batch, RATE, micro_batch_tokens)]
    learner.reset_optimizer()
    made += [learner.policy_update(batch, RATE, 0.8, settings) for settings in (loss, several)]
    return made


def main() -> None:
    """Entry point."""
    model_dir, out = Path(sys.argv[1]), Path(sys.argv[2])
    variants, tokens, resume = sys.argv[3].split(","), int(sys.argv[4]), sys.argv[5:] == ["resume"]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    vocabulary = json.loads((model_dir / "config.json").read_text())["vocab_size"]
    batch = sequences(vocabulary)
    reference = expected = manifest = None
    if rank == 0:
        reference = ProbedLearner(Policy.load(model_dir, autocast=None), OPTIMIZER, "float32")
        expected = updates(reference, batch, tokens)
        manifest = write_weights(reference.policy, out / "reference", 3)
    results = {}
    for variant in variants:
        settings = RankSettings(
            model_dir,
            ModelSettings(autocast=None, threads=1),
            OPTIMIZER,
            LearnerSettings(
                backend="deepspeed",
                ranks=ranks,
                zero_stage=int(variant[0]),
                sequence_parallel=ranks if variant.endswith("sequence") else 1,
                cpu_offload=variant.endswith("offload"),
                dtype="bfloat16" if variant.endswith("bfloat16") else "float32",
            ),
            "float32",
            1,
        )
        learner = ProbedRank(settings)
        made = updates(learner, batch, tokens)
        gradients = learner.gradients
        sent = learner.write_weights(out / f"zero-{variant}", 3)
        learner.save_pretrained(out / f"export-{variant}")
        ends = _resumed(learner, settings, batch, tokens, out / f"shards-{variant}") if resume else ("", "")
        if rank == 0:
            weights = _weights(out / f"zero-{variant}"), _weights(out / "reference")
            results[variant] = {
                "gradients": [distance(a, b) for a, b in zip(gradients, reference.gradients, strict=True)],
                "losses": [[a.loss, b.loss] for a, b in zip(made, expected, strict=True)],
                "norms": [[a.grad_norm, b.grad_norm] for a, b in zip(made, expected, strict=True)],
                "tokens": [[a.policy_tokens, b.policy_tokens] for a, b in zip(made, expected, strict=True)],
                "mismatch": [[a.mismatch, b.mismatch] for a, b in zip(made[1:], expected[1:], strict=True)],
                "weights": distance(*weights),
                "exported": distance(_weights(out / f"export-{variant}"), weights[1]),
                "moved": distance(weights[0], _weights(model_dir)),
                "exported_moved": distance(weights[1], _weights(model_dir)),
                "names": sorted(sent.parameters) == sorted(manifest.parameters),
                "resumed": ends,
            }
    if rank == 0:
        (out / "results.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def _resumed(
    learner: ProbedRank, settings: RankSettings, batch: list[WeightedSequence], tokens: int, folder: Path
) -> tuple[str, str]:
    """Checksums of the weights after one more update: by the learner that went on, and by one that was loaded."""
    folder.mkdir(exist_ok=True)
    torch.distributed.barrier()
    learner.save_shards(folder)
    loss = LossSettings(micro_batch_tokens=tokens)
    found = []
    for number, each in enumerate((learner, ProbedRank(settings))):
        if number:
            each.load_shards(folder)
        each.gradients = []
        each.policy_update(copy.deepcopy(batch), RATE, 0.8, loss)
        manifest = each.write_weights(folder / "after", 4)
        found.append(manifest.checksum if manifest else "")
    return found[0], found[1]


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        found.update({name: value.float() for name, value in load_file(path).items()})
    return found


if __name__ == "__main__":
    main()
