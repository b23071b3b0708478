"""What is logged of the rollouts of a step, and the digest that says whether two steps had the same ones."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

from rstar_trainer.scored_group import ScoredGroup

__all__ = ["rollout_digest", "step_figures"]


def rollout_digest(groups: Sequence[ScoredGroup]) -> str:
    """SHA-256 over all token ids, rewards and kept ids of a step: equal digests, equal rollouts."""
    digest = hashlib.sha256()
    for group in groups:
        for index in sorted(group.trajectories):
            record = [group.group_id, index, group.trajectories[index].ledger.token_ids, group.verdicts[index].reward]
            digest.update(json.dumps(record).encode())
        digest.update(json.dumps(group.resampled.kept_ids if group.resampled else None).encode())
    return digest.hexdigest()


def step_figures(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """What is logged of the rollouts of a step, before resampling; shares are over scored rollouts."""
    trajectories = [t for g in groups for i, t in sorted(g.trajectories.items()) if g.verdicts[i].reward is not None]
    rewards = [reward for group in groups for reward in group.rewards]
    everything = sum(len(group.trajectories) for group in groups)
    count, ends = max(1, len(trajectories)), Counter(t.end_reason.value for t in trajectories)
    calls = sum(len(t.tool_calls) for t in trajectories)
    correct = [t for g in groups for i, t in sorted(g.trajectories.items()) if g.verdicts[i].reward == 1]
    correct_calls = sum(len(t.tool_calls) for t in correct)
    solved = [group for group in groups if group.rewards and min(group.rewards) == 1.0]
    return {
        "reward": sum(rewards) / max(1, len(rewards)),
        "rollouts": float(everything),
        "unscorable": float(everything - len(trajectories)),
        "truncation_share": ends["truncated"] / count,
        "tool_calls_per_rollout": calls / count,
        "tool_error_share": sum(t.failed_tool_calls for t in trajectories) / max(1, calls),
        "tool_error_share_correct": sum(t.failed_tool_calls for t in correct) / max(1, correct_calls),
        "response_tokens": sum(t.response_tokens for t in trajectories) / count,
        "policy_tokens": sum(t.policy_tokens for t in trajectories) / count,
        "turns": sum(t.turns for t in trajectories) / count,
        "groups_kept": float(sum(not group.rejected for group in groups)),
        "groups_rejected": float(sum(group.rejected for group in groups)),
        "groups_solved_share": len(solved) / max(1, len(groups)),
    }
