"""A training step of rstar's learner against a step of TRL's GRPOTrainer, generation excluded.

    pip install trl            # or the extra rstar-trainer[bench]
    python benchmarks/step_vs_trl.py

Both train the same model on the same sequences with bfloat16 autocast over float32 weights, without gradient
checkpointing, KL term or further iterations, with AdamW and gradient clipping. The sequences have the lengths of the
rollouts that a step of the quickstart trained on; ids are random, prompts the same within a group. TRL's trainer runs
its own loop and is handed the sequences instead of generating them; it is given the micro-batch that is fastest of
those named by --trl-micro-batches. Each side runs in processes of its own, in turns.

Reported: seconds a step on the recorded lengths and on equal ones, where packing cannot help; the losses of both;
the learner's time outside of forward, backward and optimizer; how a step's cost grows with tokens.

Exit status 1: a step takes more than 0.6 of TRL's, the overhead is more than 3 %, or the losses disagree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "data" / "quickstart_step.json"
MOST_OF_TRL, MOST_OVERHEAD, LOSS_TOLERANCE = 0.6, 0.03, 2e-3
LEARNING_RATE, VOCABULARY = 1e-6, 40_000


@dataclass(frozen=True)
class Rollout:
    """One sequence: ids, where the policy wrote, its group, its advantage, tokens of its prompt."""

    ids: list[int]
    mask: list[bool]
    group: int
    advantage: float
    prompt: int


def rollouts(equal: bool, share: float = 1.0, stretch: int = 1) -> list[Rollout]:
    """The sequences of the step.

    Args:
        equal: all with the mean lengths instead of the recorded ones.
        share: of the groups.
        stretch: factor of all lengths.
    """
    rng = random.Random(0)
    groups = json.loads(RECORDED.read_text())["groups"]
    groups = groups[: max(1, round(len(groups) * share))]
    if equal:
        flat = [rollout for group in groups for rollout in group]
        prompt = round(statistics.mean(rollout["prompt"] for rollout in flat))
        policy = round(statistics.mean(sum(rollout["runs"][::2]) for rollout in flat))
        groups = [[{**rollout, "prompt": prompt, "runs": [policy]} for rollout in group] for group in groups]
    found = []
    for number, group in enumerate(groups):
        start = [rng.randrange(100, VOCABULARY) for _ in range(group[0]["prompt"] * stretch)]
        rewards = [rollout["reward"] for rollout in group]
        mean, std = statistics.mean(rewards), statistics.pstdev(rewards)
        for rollout, reward in zip(group, rewards, strict=True):
            runs = [(index % 2 == 0, length * stretch) for index, length in enumerate(rollout["runs"])]
            mask = [False] * len(start) + [kind for kind, length in runs for _ in range(length)]
            ids = start + [rng.randrange(100, VOCABULARY) for _ in range(len(mask) - len(start))]
            found.append(Rollout(ids, mask, number, (reward - mean) / std, len(start)))
    return found


def rstar_side(options: argparse.Namespace) -> dict[str, Any]:
    """Time of `TorchLearner.policy_update`, and of its parts."""
    import time

    import torch

    from rstar_model.policy import Policy
    from rstar_trainer.allocator import keep_freed_memory
    from rstar_trainer.learner import TorchLearner
    from rstar_trainer.recipe import LossSettings, OptimizerSettings
    from rstar_trainer.sequences import WeightedSequence

    if options.allocator != "system":
        keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    policy = Policy.load(options.model, dtype="float32", autocast="bfloat16")
    learner = TorchLearner(policy, OptimizerSettings())
    settings = LossSettings(aggregation="batch_token_mean", micro_batch_tokens=options.micro_batch_tokens)
    nan = float("nan")
    sequences = [
        WeightedSequence(tuple(r.ids), tuple(r.mask), (nan,) * len(r.ids), r.group, r.advantage)
        for r in rollouts(options.equal, options.share, options.stretch)
    ]
    inside = [0.0]

    def timed(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                inside[0] += time.perf_counter() - start

        return call

    policy.forward_log_probs = timed(policy.forward_log_probs)
    learner._step = timed(learner._step)
    learner._pass._backward = timed(learner._pass._backward)
    seconds, parts, metrics = [], [], None
    for _ in range(options.repeats + 1):
        inside[0] = 0.0
        start = time.perf_counter()
        found = learner.policy_update(sequences, LEARNING_RATE, 1.0, settings)
        seconds.append(time.perf_counter() - start)
        parts.append(inside[0])
        metrics = metrics or found
    assert metrics is not None
    return {
        "seconds": seconds[1:],
        "inside": parts[1:],
        "loss": metrics.loss,
        "grad_norm": metrics.grad_norm,
        "tokens": metrics.tokens,
    }


def trl_side(options: argparse.Namespace) -> dict[str, Any]:
    """Time from the beginning of a step of GRPOTrainer to its end, with the sequences in place of generation."""
    import time

    import torch
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    if options.allocator == "both":
        from rstar_trainer.allocator import keep_freed_memory

        keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    given = rollouts(options.equal, options.share, options.stretch)
    group_size = sum(rollout.group == 0 for rollout in given)

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            return _padded(given, int(self.processing_class.pad_token_id))

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.start = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.start)

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=options.micro_batch,
            gradient_accumulation_steps=len(given) // options.micro_batch,
            num_generations=group_size,
            max_completion_length=max(len(rollout.ids) - rollout.prompt for rollout in given),
            max_steps=options.repeats + 1,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            beta=0.0,
            num_iterations=1,
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            bf16=True,
            gradient_checkpointing=False,
            use_cpu=not torch.cuda.is_available(),
            save_strategy="no",
            report_to=[],
            logging_steps=1,
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        trainer = Trainer(
            model=str(options.model),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": [str(n) for n in range(len(given))]}),
            processing_class=tokenizer,
            callbacks=[clock],
        )
        trainer.train()
    first = next(entry for entry in trainer.state.log_history if "loss" in entry)
    return {
        "seconds": clock.seconds[1:],
        "loss": first["loss"],
        "grad_norm": first["grad_norm"],
        "tokens": sum(len(rollout.ids) for rollout in given),
    }


def _padded(given: list[Rollout], pad: int) -> dict[str, Any]:
    """The sequences as GRPOTrainer has them: prompts padded on the left, completions on the right."""
    import torch

    prompts = max(rollout.prompt for rollout in given)
    completions = max(len(rollout.ids) - rollout.prompt for rollout in given)
    rows: dict[str, list[list[int]]] = {
        name: [] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")
    }
    for rollout in given:
        left = prompts - rollout.prompt
        right = completions - (len(rollout.ids) - rollout.prompt)
        rows["prompt_ids"].append([pad] * left + rollout.ids[: rollout.prompt])
        rows["prompt_mask"].append([0] * left + [1] * rollout.prompt)
        rows["completion_ids"].append(rollout.ids[rollout.prompt :] + [pad] * right)
        rows["completion_mask"].append([1] * (completions - right) + [0] * right)
        rows["tool_mask"].append([int(loss) for loss in rollout.mask[rollout.prompt :]] + [0] * right)
    tensors = {name: torch.tensor(values) for name, values in rows.items()}
    tensors["advantages"] = torch.tensor([rollout.advantage for rollout in given])
    tensors["num_items_in_batch"] = (tensors["completion_mask"] * tensors["tool_mask"]).sum()
    return tensors


def main() -> int:
    """Runs both sides in turns and prints one table; see the module text for the exit status."""
    options = _arguments()
    if options.side:
        result = rstar_side(options) if options.side == "rstar" else trl_side(options)
        Path(options.result).write_text(json.dumps(result))
        return 0
    if options.model is None:
        from rstar_model.fetch import fetch

        options.model = fetch("smollm2-135m").path
    micro_batch = _best_micro_batch(options)
    found: dict[str, Any] = {"trl_micro_batch": micro_batch, "threads": options.threads or os.cpu_count()}
    for name, equal in (("recorded", False), ("equal", True)):
        flags = ["--equal"] if equal else []
        ours: dict[str, Any] = {"seconds": [], "inside": []}
        theirs: dict[str, Any] = {"seconds": []}
        for _ in range(options.rounds):
            for side, total in (("rstar", ours), ("trl", theirs)):
                part = _child(options, side, [*flags, "--micro-batch", str(micro_batch)])
                for key, value in part.items():
                    total[key] = total.get(key, []) + value if isinstance(value, list) else value
        found[name] = _compared(ours, theirs)
        print(_line(name, found[name]), flush=True)
    found["growth"] = {}
    for share, stretch in ((0.5, 1), (1.0, 1), (0.5, 2), (0.5, 4)):
        part = _child(options, "rstar", ["--share", str(share), "--stretch", str(stretch)])
        seconds = statistics.median(part["seconds"])
        found["growth"][f"{share:g} of the groups, lengths x {stretch}"] = [part["tokens"], seconds]
        per_token = 1000 * seconds / part["tokens"]
        print(
            f"rstar, {share:g} of the groups, lengths x {stretch}: {part['tokens']} tokens, {per_token:.3f} ms a token"
        )
    misses = _misses(found)
    for miss in misses:
        print(f"miss: {miss}")
    if options.out:
        Path(options.out).write_text(json.dumps({**found, "misses": misses}, indent=1) + "\n")
    return 1 if misses else 0


def _compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    own, other = statistics.median(ours["seconds"]), statistics.median(theirs["seconds"])
    spent = sum(ours["seconds"])
    return {
        "rstar_seconds": own,
        "trl_seconds": other,
        "ratio": own / other,
        "overhead": (spent - sum(ours["inside"])) / spent,
        "tokens": ours["tokens"],
        "rstar_tokens_per_second": ours["tokens"] / own,
        "trl_tokens_per_second": theirs["tokens"] / other,
        "loss": [ours["loss"], theirs["loss"]],
        "grad_norm": [ours["grad_norm"], theirs["grad_norm"]],
        "all_seconds": [ours["seconds"], theirs["seconds"]],
    }


def _line(name: str, part: dict[str, Any]) -> str:
    return (
        f"{name} lengths, {part['tokens']} tokens: rstar {part['rstar_seconds']:.2f} s "
        f"({part['rstar_tokens_per_second']:.0f} tokens/s), TRL {part['trl_seconds']:.2f} s "
        f"({part['trl_tokens_per_second']:.0f} tokens/s), ratio {part['ratio']:.3f}; overhead {part['overhead']:.2%}; "
        f"loss {part['loss'][0]:.5f} and {part['loss'][1]:.5f}, "
        f"gradient norm {part['grad_norm'][0]:.4f} and {part['grad_norm'][1]:.4f}"
    )


def _misses(found: dict[str, Any]) -> list[str]:
    misses = []
    if found["recorded"]["ratio"] > MOST_OF_TRL:
        misses.append(f"a step takes {found['recorded']['ratio']:.3f} of TRL's, more than {MOST_OF_TRL}")
    for name in ("recorded", "equal"):
        part = found[name]
        if part["overhead"] > MOST_OVERHEAD:
            misses.append(f"overhead with {name} lengths is {part['overhead']:.2%}, more than {MOST_OVERHEAD:.0%}")
        if abs(part["loss"][0] - part["loss"][1]) > LOSS_TOLERANCE:
            misses.append(f"losses with {name} lengths disagree: {part['loss'][0]} and {part['loss'][1]}")
    return misses


def _best_micro_batch(options: argparse.Namespace) -> int:
    """The fastest of TRL's micro-batches, from one step each."""
    sizes = [int(text) for text in options.trl_micro_batches.split(",")]
    if len(sizes) == 1:
        return sizes[0]
    seconds = {}
    for size in sizes:
        part = _child(options, "trl", ["--micro-batch", str(size), "--repeats", "1"])
        seconds[size] = part["seconds"][0]
        print(f"TRL with a micro-batch of {size}: {seconds[size]:.2f} s", flush=True)
    return min(seconds, key=lambda size: seconds[size])


def _child(options: argparse.Namespace, side: str, flags: list[str]) -> dict[str, Any]:
    python = options.trl_python if side == "trl" else sys.executable
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [python, __file__, "--side", side, "--result", str(result), "--model", str(options.model)]
        command += ["--threads", str(options.threads), "--allocator", options.allocator]
        command += ["--micro-batch-tokens", str(options.micro_batch_tokens)]
        command += flags if "--repeats" in flags else [*flags, "--repeats", str(options.repeats)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
        values: dict[str, Any] = json.loads(result.read_text())
        return values


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="Hugging Face folder; default: SmolLM2-135M-Instruct, fetched")
    parser.add_argument("--repeats", type=int, default=3, help="measured steps a process, after one to warm up")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side, in turns")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: the library's choice")
    parser.add_argument("--trl-micro-batches", default="4,8,16", help="micro-batches to choose TRL's from")
    parser.add_argument("--trl-python", default=sys.executable, help="interpreter that has trl")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="of rstar")
    parser.add_argument(
        "--allocator",
        choices=("own", "system", "both"),
        default="own",
        help="memory that is freed stays with the process: in rstar as in a run, in neither, in both",
    )
    parser.add_argument("--out", help="write everything to this JSON file")
    for name, kind, default in (("--side", str, ""), ("--result", str, ""), ("--micro-batch", int, 8)):
        parser.add_argument(name, type=kind, default=default, help=argparse.SUPPRESS)
    parser.add_argument("--equal", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--stretch", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
