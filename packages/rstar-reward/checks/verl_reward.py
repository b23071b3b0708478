"""verl's own reward managers with this verifier: python checks/verl_reward.py

Needs `pip install verl` (--no-deps does, with torch, transformers, ray, tensordict, omegaconf, hydra-core, codetiming).

Loads `compute_score` by its package path as verl does, and gives verl's naive managers - the one of the driver and the
one of the reward loop - a padded batch of tokenised responses. Needs neither a GPU nor a model. Prints reward and
status of each response; ends with status 1 unless every reward stands where verl wants it (the last token of the
response) with the value it should have, and a reference answer that cannot be used is raised.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls as loop_manager
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.workers.reward_manager import get_reward_manager_cls as driver_manager

from rstar_protos.errors import UserInputError

_PROMPT = "What is the square root of 8?"
_GOLD = "2\\sqrt{2}"
_CASES = (
    ("so <answer>\\boxed{\\sqrt{8}}</answer>", "correct", 1.0),
    ("so <answer>\\boxed{2.83}</answer>", "wrong", 0.0),
    ("<tool_response>\\boxed{\\sqrt{8}}</tool_response> I do not know.", "no_answer", 0.0),
    ("<answer>either \\sqrt{8} or 3</answer>", "hedged", 0.0),
    ("<answer>\\boxed{9^{9^{9^{9^{9}}}}}</answer>", "too_complex", 0.0),
    ("<answer>\\boxed{__import__('os').abort()}</answer>", "wrong", 0.0),
)
_END = "<|im_end|>"
_MANY = 16


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and a control token that verl leaves out of the text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=_END, pad_token=_END)


def batch_of(tokenizer: PreTrainedTokenizerFast, responses: list[str], gold: str) -> tuple[DataProto, list[int]]:
    """A batch as verl's rollout makes it, padded on both sides, and the place of each response's last token."""
    prompts = tokenizer([_PROMPT] * len(responses), padding="max_length", max_length=64, padding_side="left")
    written = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in responses]
    width = max(map(len, written)) + 3
    padded = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in written]
    mask = [[1] * len(ids) + [0] * (width - len(ids)) for ids in written]
    attention = torch.cat([torch.tensor(prompts["attention_mask"]), torch.tensor(mask)], dim=1)
    tensors = {
        "prompts": torch.tensor(prompts["input_ids"]),
        "responses": torch.tensor(padded),
        "attention_mask": attention,
    }
    others = {
        "data_source": ["roots"] * len(responses),
        "reward_model": [{"style": "rule", "ground_truth": gold}] * len(responses),
        "extra_info": [{"index": number} for number in range(len(responses))],
        "__num_turns__": [2] * len(responses),
    }
    columns = {}
    for name, values in others.items():
        columns[name] = numpy.empty(len(values), dtype=object)
        columns[name][:] = values
    return DataProto(TensorDict(tensors, batch_size=len(responses)), columns), [len(ids) - 1 for ids in written]


def reward_function(**reward_kwargs: Any) -> Any:
    """What verl makes of the two lines in its configuration."""
    function = {"path": "pkg://rstar_reward.integrations.verl", "name": "compute_score", "reward_kwargs": reward_kwargs}
    return get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": function}}))


def in_driver(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Faults of the manager that goes through a batch in the driver."""
    responses = [text for text, _, _ in _CASES]
    data, last = batch_of(tokenizer, responses, _GOLD)
    manager = driver_manager("naive")(tokenizer, 0, reward_function())
    found = manager(data, return_dict=True)
    expected = torch.zeros_like(found["reward_tensor"])
    faults = []
    for number, (text, status, reward) in enumerate(_CASES):
        expected[number, last[number]] = reward
        told = found["reward_extra_info"]["status"][number]
        print(f"{float(found['reward_tensor'][number].sum()):.0f} {told:<12}{text}")
        if told != status:
            faults.append(f"{text}: {told} instead of {status}")
    if not torch.equal(expected, found["reward_tensor"]):
        faults.append("rewards are not at the last tokens, or have other values")
    # What verl does with the rest of the dictionary in a validation.
    metrics = process_validation_metrics(["roots"] * len(_CASES), responses, found["reward_extra_info"])
    if "acc" not in metrics["roots"]:
        faults.append("verl makes no metric of acc")
    return faults


async def in_loop(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Faults of the manager that scores each response as it comes, many at a time."""
    cases = _CASES * _MANY
    data, _ = batch_of(tokenizer, [text for text, _, _ in cases], _GOLD)
    manager = loop_manager("naive")(OmegaConf.create({}), tokenizer, reward_function())
    found = await asyncio.gather(*(manager.run_single(data[index : index + 1]) for index in range(len(cases))))
    return [
        f"reward loop, {text}: {answer}"
        for (text, status, reward), answer in zip(cases, found, strict=True)
        if (answer["reward_score"], answer["reward_extra_info"]["status"]) != (reward, status)
    ]


def with_bad_gold(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Faults with a reference answer that cannot be used: raised, or the score that was asked for."""
    data, _ = batch_of(tokenizer, [_CASES[0][0]], "((")
    faults = []
    try:
        driver_manager("naive")(tokenizer, 0, reward_function())(data)
        faults.append("a reference answer that cannot be used was scored")
    except UserInputError as error:
        print(f"raised: {error}")
    asked = driver_manager("naive")(tokenizer, 0, reward_function(excluded_score=-1.0))(data)
    if float(asked.sum()) != -1.0:
        faults.append("excluded_score was not used")
    return faults


def main() -> int:
    """Runs all and prints."""
    tokenizer = byte_tokenizer()
    faults = [*in_driver(tokenizer), *asyncio.run(in_loop(tokenizer)), *with_bad_gold(tokenizer)]
    for fault in dict.fromkeys(faults):
        print(f"fault: {fault}")
    print(f"{'failed' if faults else 'passed'}: {len(_CASES)} kinds of responses, {len(_CASES) * _MANY} in the loop")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
