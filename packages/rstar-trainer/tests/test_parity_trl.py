"""The objective against TRL's GRPO loss where settings coincide: same log-probabilities in, same loss and gradient."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rstar_trainer.objective import clipped_policy_loss, sequence_token_weights, truncated_engine_weights

pytestmark = pytest.mark.heavy

COUNTS, WIDTH, CAP = [5, 9, 1, 7], 9, 1.4
SAME = {"grpo": "sequence_mean", "bnpo": "batch_token_mean", "dapo": "batch_token_mean", "dr_grpo": "dr_grpo"}


@pytest.mark.parametrize("corrected", [False, True], ids=["uncorrected", "engine correction"])
@pytest.mark.parametrize("kind", SAME)
def test_loss_and_gradient_are_trls(kind: str, corrected: bool) -> None:
    from trl import GRPOTrainer

    generator = torch.Generator().manual_seed(1)
    new, old, engine = (torch.randn(4, WIDTH, generator=generator, dtype=torch.float64) * 0.4 - 1 for _ in range(3))
    advantages = torch.tensor([1.5, -0.5, -0.5, 0.7], dtype=torch.float64)
    mask = torch.arange(WIDTH)[None] < torch.tensor(COUNTS)[:, None]

    theirs = new.clone().requires_grad_()
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (theirs, torch.zeros_like(new), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type=kind,
        epsilon_low=0.2,
        epsilon_high=0.28,
        use_vllm=corrected,
        vllm_importance_sampling_correction=corrected,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=20,
        _entropy_bonus_enabled=False,
        accelerator=SimpleNamespace(num_processes=1, gather=lambda t: t, reduce=lambda t, reduction: t),
        args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    inputs = {
        "prompt_ids": torch.zeros(4, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(4, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(4, WIDTH, dtype=torch.int64),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "importance_sampling_ratio": (old - engine).exp().clamp(max=CAP),
        "num_items_in_batch": mask.sum(),
    }
    expected = GRPOTrainer._compute_loss(trainer, None, inputs)
    expected.backward()

    ours = new.clone().requires_grad_()
    counts = torch.tensor(COUNTS)
    weights = sequence_token_weights(COUNTS, [0, 0, 1, 1], SAME[kind], 20)  # type: ignore[arg-type]
    result = clipped_policy_loss(
        ours[mask],
        old[mask],
        advantages.repeat_interleave(counts),
        torch.tensor(weights, dtype=torch.float64).repeat_interleave(counts),
        engine_weights=truncated_engine_weights(old[mask], engine[mask], CAP) if corrected else None,
    )
    result.loss.backward()  # type: ignore[no-untyped-call]
    measured = trainer._metrics["train"]
    for clipped, name in ((result.clipped_low, "low"), (result.clipped_high, "high")):
        assert int(clipped) > 0
        assert int(clipped) / sum(COUNTS) == pytest.approx(measured[f"clip_ratio/{name}_mean"][0])
    torch.testing.assert_close(result.loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
