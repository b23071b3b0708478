"""TRL's GRPOTrainer with this verifier as its reward: pip install trl, then python checks/trl_grpo.py

Makes a model of a few thousand parameters whose tokens are whole answers, so that a random policy is right now and
then, and trains it for some steps on the CPU without any download. Prints the mean reward of each step; ends with
status 1 unless the reward rises.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from statistics import mean

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from rstar_reward.integrations.trl import make_reward

_ANSWERS = ("<answer>\\boxed{\\frac{1}{2}}</answer>", "<answer>\\boxed{0.4}</answer>", "<answer>5/10</answer>", "0.5")
_END, _PAD = "<end>", "<pad>"


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each answer."""
    words = [_PAD, _END, "half?", *_ANSWERS]
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=_PAD))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=_PAD, eos_token=_END)


def main() -> int:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=LlamaForCausalLM(config),
            reward_funcs=[make_reward(column="answer", end_tokens={tokenizer.eos_token_id})],
            args=GRPOConfig(
                output_dir=folder, max_steps=arguments.steps, per_device_train_batch_size=32, num_generations=8,
                max_completion_length=6, learning_rate=0.02, logging_steps=1, report_to=[], use_cpu=True, seed=1,
                disable_tqdm=True, save_strategy="no", bf16=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["half?"] * 256, "answer": ["\\frac{1}{2}"] * 256}),
            processing_class=tokenizer,
        )  # fmt: skip
        trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print("mean reward by step:", " ".join(f"{reward:.2f}" for reward in rewards))
    third = max(len(rewards) // 3, 1)
    print(f"first third {mean(rewards[:third]):.2f}, last third {mean(rewards[-third:]):.2f}")
    return 0 if mean(rewards[-third:]) > mean(rewards[:third]) else 1


if __name__ == "__main__":
    sys.exit(main())
