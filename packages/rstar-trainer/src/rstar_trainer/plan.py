"""The arithmetic of a recipe: steps, rollouts, tokens and memory, without starting anything.

Token figures are upper bounds: every rollout at its limit. Memory figures are what the formulas
beside them give; activations are an estimate.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rstar_trainer.data import TrainProblem, fingerprint, load_heldout_problems, load_training_problems
from rstar_trainer.model_shape import ModelShape, model_shape
from rstar_trainer.preflight import check_files
from rstar_trainer.rank_memory import RankMemory, rank_memory
from rstar_trainer.recipe import Recipe, Stage
from rstar_trainer.transfer_machine import check_machine

__all__ = ["EvaluationPlan", "MemoryPlan", "Plan", "StagePlan", "make_plan"]

_DTYPE_BYTES = {"bfloat16": 2, "float32": 4}

# Positions whose vocabulary-wide logits exist at one time in the log-probability pass, and copies of them.
_LOGIT_CHUNK, _LOGIT_COPIES = 1024, 3

# Saved activations of one transformer layer, in units of tokens x hidden values, with a fused attention.
_ACTIVATIONS_PER_LAYER = 24


@dataclass(frozen=True)
class StagePlan:
    """One stage: SFT, or RL with its rollouts."""

    name: str
    steps: int
    optimizer_updates: int
    problems_per_step: int
    rollouts_per_step: int
    trained_rollouts_per_step: int
    rollouts: int
    filter_rollouts: int
    max_response_tokens: int
    max_generated_tokens: int
    epochs: float | None
    """Passes over the training problems; None where the number is not known beforehand."""


@dataclass(frozen=True)
class EvaluationPlan:
    """One evaluation."""

    name: str
    problems: int
    unseen_problems: int
    rollouts: int
    max_generated_tokens: int


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of the largest parts. An embedded trainer and engine share one machine."""

    parameters: int
    trainer_state: int
    """fp32 parameters, gradients and both AdamW moments: 16 bytes a parameter; 4 for one that does not train. This and
    the next three are 0 where the learner is on ranks."""
    checkpoint_copy: int
    """Parameters and moments that train, while a checkpoint is written: 12 bytes each."""
    trainer_activations: int
    trainer_logits: int
    engine_weights: int
    engine_kv_cache: int
    """What max_batch sequences of max_model_len tokens need, at most kv_cache_gib; with the transformers engine also
    what it keeps of sequences that wait for a tool, at most as much again."""
    total: int
    """With what ranks need of this machine: all of it for CPU ranks under a Ray of their own, else the hosts' part."""
    machine: int | None
    rank: RankMemory | None = None
    """Of each rank, for a learner on DeepSpeed ranks."""


@dataclass(frozen=True)
class Plan:
    """A recipe with its arithmetic."""

    recipe: Recipe
    stages: tuple[StagePlan, ...]
    evaluations: tuple[EvaluationPlan, ...]
    memory: MemoryPlan | None
    train_problems: int
    train_fingerprint: str
    heldout_problems: int
    heldout_fingerprint: str
    warnings: tuple[str, ...]

    @property
    def totals(self) -> dict[str, int]:
        """Sums over the run."""
        return {
            "steps": sum(stage.steps for stage in self.stages),
            "optimizer_updates": sum(stage.optimizer_updates for stage in self.stages),
            "training_rollouts": sum(stage.rollouts + stage.filter_rollouts for stage in self.stages),
            "evaluation_rollouts": sum(evaluation.rollouts for evaluation in self.evaluations),
            "max_generated_tokens": sum(stage.max_generated_tokens for stage in self.stages)
            + sum(evaluation.max_generated_tokens for evaluation in self.evaluations),
        }

    def to_json_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "run_dir": str(self.recipe.run_path),
            "recipe": self.recipe.model_dump(mode="json"),
            "stages": [asdict(stage) for stage in self.stages],
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
            "totals": self.totals,
            "memory_bytes": None if self.memory is None else asdict(self.memory),
            "data": {
                "train": {"problems": self.train_problems, "sha256": self.train_fingerprint},
                "heldout": {"problems": self.heldout_problems, "sha256": self.heldout_fingerprint},
            },
            "warnings": list(self.warnings),
        }


def make_plan(recipe: Recipe) -> Plan:
    """Reads the data and works out what a run would do.

    Raises:
        UserInputError: data or model files that are missing or not usable, or weights that cannot arrive here.
    """
    check_files(recipe)
    check_machine(recipe)
    train = load_training_problems(recipe)
    heldout = load_heldout_problems(recipe)
    unseen = sum(len(problems) for problems in heldout.unseen.values())
    shape = model_shape(recipe.model.source)
    memory = None if shape is None else _memory(recipe, shape)
    stages = [_rl_plan(stage, len(train)) for stage in recipe.stages]
    if recipe.sft.enabled:
        stages.insert(0, _sft_plan(recipe))
    return Plan(
        recipe=recipe,
        stages=tuple(stages),
        evaluations=_evaluations(recipe, len(heldout.problems), unseen),
        memory=memory,
        train_problems=len(train),
        train_fingerprint=fingerprint(train),
        heldout_problems=len(heldout.problems),
        heldout_fingerprint=fingerprint(heldout.problems),
        warnings=tuple(_warnings(recipe, train, heldout.problems, memory)),
    )


def _sft_plan(recipe: Recipe) -> StagePlan:
    sft = recipe.sft
    return StagePlan(
        name="sft",
        steps=sft.steps,
        optimizer_updates=sft.steps,
        problems_per_step=sft.batch_size,
        rollouts_per_step=0,
        trained_rollouts_per_step=0,
        rollouts=0,
        filter_rollouts=0,
        max_response_tokens=0,
        max_generated_tokens=0,
        epochs=sft.steps * sft.batch_size / sft.examples,
    )


def _rl_plan(stage: Stage, train_problems: int) -> StagePlan:
    # A refill round replaces at most every group of the step.
    rounds = 1 + stage.refill_rounds
    rollouts_per_step = stage.problems_per_step * stage.rollouts_per_problem
    extra = stage.problems_under_way - stage.problems_per_step
    # Groups that are stopped go on in the next step: those beside the step's own are begun once more, at the start.
    rollouts = (stage.steps * stage.problems_per_step * rounds + extra) * stage.rollouts_per_problem
    hard = stage.hard_filter if stage.data == "hard" else None
    filter_rollouts = min(hard.problems, train_problems) * hard.samples if hard else 0
    return StagePlan(
        name=stage.name,
        steps=stage.steps,
        optimizer_updates=stage.steps * stage.loss.updates_per_step,
        problems_per_step=stage.problems_per_step,
        rollouts_per_step=rollouts_per_step,
        trained_rollouts_per_step=stage.problems_per_step * stage.group_size,
        rollouts=rollouts,
        filter_rollouts=filter_rollouts,
        max_response_tokens=stage.max_response_tokens,
        max_generated_tokens=(rollouts + filter_rollouts) * stage.max_response_tokens,
        epochs=None if hard else (stage.steps * stage.problems_per_step + extra) / train_problems,
    )


def _evaluations(recipe: Recipe, heldout: int, unseen: int) -> tuple[EvaluationPlan, ...]:
    settings = recipe.evaluation
    plans = []
    for entry in recipe.entries:
        full = recipe.is_full_evaluation(entry)
        plans.append((entry, min(recipe.evaluation_problems(entry), heldout), unseen if full else 0))
    if settings.ablate_tool:
        plans.append((f"{recipe.entries[-1]}, tool disabled", heldout, 0))
    return tuple(
        EvaluationPlan(
            name=name,
            problems=problems,
            unseen_problems=extra,
            rollouts=(problems + extra) * settings.samples,
            max_generated_tokens=(problems + extra) * settings.samples * settings.max_response_tokens,
        )
        for name, problems, extra in plans
    )


def _memory(recipe: Recipe, shape: ModelShape) -> MemoryPlan:
    compute = 2 if recipe.model.autocast == "bfloat16" else 4
    tokens = max((stage.loss.micro_batch_tokens for stage in recipe.stages), default=0)
    if recipe.sft.enabled:
        tokens = max(tokens, recipe.sft.micro_batch_tokens)
    # With recomputation only the input of each layer is kept, and one layer at a time in full.
    layers = shape.layers * (1 if recipe.model.gradient_checkpointing else _ACTIVATIONS_PER_LAYER)
    layers += _ACTIVATIONS_PER_LAYER if recipe.model.gradient_checkpointing else 0
    embedded = recipe.services.rollout.embedded
    engine_bytes = _DTYPE_BYTES[recipe.engine.dtype]
    lora = recipe.model.lora
    # Layers differ in size; twice the hidden size on either side is about their mean.
    adapters = 0 if lora is None else lora.rank * len(lora.targets) * shape.layers * 4 * shape.hidden
    trained = shape.parameters if lora is None else adapters
    activations = tokens * shape.hidden * layers * compute
    logits = _LOGIT_CHUNK * shape.vocabulary * 4 * _LOGIT_COPIES
    engine = {
        "engine_weights": shape.parameters * engine_bytes if embedded else 0,
        "engine_kv_cache": _kv_cache(recipe, shape.kv_bytes_per_token(engine_bytes)) if embedded else 0,
    }
    learner, machine = recipe.learner, _machine_memory()
    if learner.backend == "deepspeed":
        rank = rank_memory(learner, shape, activations=activations // learner.sequence_parallel, logits=logits)
        elsewhere = dict.fromkeys(("trainer_state", "checkpoint_copy", "trainer_activations", "trainer_logits"), 0)
        of_a_rank = rank.host + (0 if learner.gpus_per_rank else rank.device)
        ranks_here = learner.ranks if learner.ray_address == "local" else 0
        total = sum(engine.values()) + ranks_here * of_a_rank
        return MemoryPlan(shape.parameters, **elsewhere, **engine, total=total, machine=machine, rank=rank)
    parts = {
        "trainer_state": (shape.parameters + adapters) * 4 + trained * 12,
        "checkpoint_copy": trained * 12,
        "trainer_activations": activations,
        "trainer_logits": logits,
        **engine,
    }
    return MemoryPlan(shape.parameters, **parts, total=sum(parts.values()), machine=machine, rank=None)


def _kv_cache(recipe: Recipe, token_bytes: int) -> int:
    engine = recipe.engine
    limit, sequence = int(engine.kv_cache_gib * 2**30), engine.max_model_len * token_bytes
    running = min(limit, engine.max_batch * sequence)
    if engine.type != "transformers":
        return running
    steps = [stage.problems_under_way * stage.rollouts_per_problem for stage in recipe.stages]
    rollouts = max(*steps, recipe.evaluation.problems * recipe.evaluation.samples, 0)
    return running + min(limit, rollouts * sequence)


def _machine_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _warnings(
    recipe: Recipe,
    train: Sequence[TrainProblem],
    heldout: Sequence[TrainProblem],
    memory: MemoryPlan | None,
) -> list[str]:
    warnings = []
    texts = {problem.text for problem in train}
    shared = sum(problem.text in texts for problem in heldout)
    if shared:
        warnings.append(f"{shared} of {len(heldout)} held-out problems are training problems too")
    if memory is not None and memory.machine is not None and memory.total > 0.9 * memory.machine:
        warnings.append(
            f"about {memory.total / 1e9:.1f} GB are needed and the machine has {memory.machine / 1e9:.1f}: "
            "lower engine.max_batch, engine.max_model_len or loss.micro_batch_tokens, "
            "or set model.gradient_checkpointing=true"
        )
    if recipe.engine.type == "vllm" and recipe.engine.deterministic:
        warnings.append("with vLLM tokens are not equal from run to run; engine.deterministic has no effect")
    return warnings
