"""One rank of a learner that sends its weights three times to the two workers of the service at an endpoint.

Arguments: model folder, folder for results, ZeRO stage, endpoint, first version. Rank 0 writes `sent.json`: what it was
told when it counted on seven workers, and then what each sending returned.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from rstar_model.weights import WeightManifest
from rstar_trainer.backends.zero_rank import RankSettings, ZeroRank
from rstar_trainer.recipe import LearnerSettings, ModelSettings, OptimizerSettings
from rstar_trainer.weight_target import TransferTarget


def main() -> None:
    """See the module text."""
    model, out, stage, endpoint, first = sys.argv[1:]
    torch.set_num_threads(1)
    settings = RankSettings(
        Path(model),
        ModelSettings(autocast=None, threads=1),
        OptimizerSettings(),
        LearnerSettings(backend="deepspeed", ranks=int(os.environ["WORLD_SIZE"]), zero_stage=int(stage)),
        "bfloat16",
        1,
        (1, 2, 3, 4, 5),
    )
    rank = ZeroRank(settings)
    sent: list[Any] = [rank.meet_engines(TransferTarget("shared_memory", endpoint, workers=7), int(first))]
    target = TransferTarget("shared_memory", endpoint, workers=2)
    for version in range(int(first), int(first) + 3):
        refused = rank.meet_engines(target, version)
        assert not refused, refused
        found = rank.send_weights()
        sent.append(vars(found) if isinstance(found, WeightManifest) else found)
    rank.close()
    if os.environ["RANK"] == "0":
        Path(out, "sent.json").write_text(json.dumps(sent, default=str))


if __name__ == "__main__":
    main()
