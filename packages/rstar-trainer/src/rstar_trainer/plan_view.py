"""A plan as tables for people."""

from rich.console import Console
from rich.table import Table

from rstar_trainer.plan import MemoryPlan, Plan
from rstar_trainer.rank_memory import RankMemory

__all__ = ["print_plan"]


def print_plan(plan: Plan, console: Console) -> None:
    """Prints stages, evaluations, memory, data and the resolved recipe."""
    recipe = plan.recipe
    _line(console, f"recipe {recipe.name}, seed {recipe.seed}, run folder {recipe.run_path}")
    _line(console, f"model {recipe.model.source}, engine {recipe.engine.type} in {recipe.engine.dtype}")
    if recipe.engine.transfer != "files":
        _line(console, f"weights by {recipe.engine.transfer}")
    if recipe.engine.sleep_level:
        _line(console, f"engines sleep while the learner computes, level {recipe.engine.sleep_level}")
    for name in ("sandbox", "reward", "rollout", "sampling"):
        endpoint = getattr(recipe.services, name).endpoint
        if endpoint != "embedded":
            _line(console, f"{name} service at {endpoint}")
    _line(console, f"training problems {plan.train_problems}, sha256 {plan.train_fingerprint}")
    _line(console, f"held-out problems {plan.heldout_problems}, sha256 {plan.heldout_fingerprint}")
    console.print(_stages(plan))
    console.print(_evaluations(plan))
    if plan.memory is not None:
        if plan.memory.rank is not None:
            console.print(_rank_memory(plan.memory.rank))
        console.print(_memory(plan.memory))
    totals = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in plan.totals.items())
    _line(console, f"in all: {totals}")
    for warning in plan.warnings:
        _line(console, f"warning: {warning}")


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    return table


def _stages(plan: Plan) -> Table:
    table = _table(
        "stages (tokens: every rollout at its limit)",
        "stage",
        "steps",
        "updates",
        "problems/step",
        "rollouts/step",
        "trained/step",
        "rollouts",
        "hard filter",
        "tokens, at most",
        "epochs",
    )
    for stage in plan.stages:
        table.add_row(
            stage.name,
            *(str(n) for n in (stage.steps, stage.optimizer_updates, stage.problems_per_step)),
            *(f"{n:,}" if n else "-" for n in (stage.rollouts_per_step, stage.trained_rollouts_per_step)),
            *(f"{n:,}" if n else "-" for n in (stage.rollouts, stage.filter_rollouts)),
            f"{stage.max_generated_tokens:,}" if stage.max_generated_tokens else "-",
            "-" if stage.epochs is None else f"{stage.epochs:.2f}",
        )
    return table


def _evaluations(plan: Plan) -> Table:
    table = _table("evaluations", "after", "problems", "unseen kinds", "rollouts", "tokens, at most")
    for evaluation in plan.evaluations:
        counts = (evaluation.problems, evaluation.unseen_problems, evaluation.rollouts)
        table.add_row(evaluation.name, *(f"{n:,}" for n in (*counts, evaluation.max_generated_tokens)))
    return table


def _memory(memory: MemoryPlan) -> Table:
    table = _table("memory", "part", "GB")
    trainer = (
        (f"trainer: fp32 weights, gradients, AdamW ({memory.parameters / 1e6:,.0f} M)", memory.trainer_state),
        ("trainer: activations of a micro-batch, estimated", memory.trainer_activations),
        ("trainer: copy while a checkpoint is written", memory.checkpoint_copy),
        ("trainer: one chunk of vocabulary logits", memory.trainer_logits),
    )
    for name, size in (
        *(trainer if memory.rank is None else ()),
        ("engine: weights", memory.engine_weights),
        ("engine: KV cache, at most", memory.engine_kv_cache),
        ("total" if memory.rank is None else "total, with the ranks' share of this machine", memory.total),
    ):
        table.add_row(name, f"{size / 1e9:.2f}")
    if memory.machine is not None:
        table.add_row("this machine has", f"{memory.machine / 1e9:.2f}", style="dim")
    return table


def _rank_memory(rank: RankMemory) -> Table:
    table = _table(f"memory of each of {rank.ranks} ranks, ZeRO stage {rank.zero_stage}", "part", "GB")
    for name, size in (
        ("parameters", rank.parameters),
        ("parameters gathered while in use", rank.gathered),
        ("gradients, float32", rank.gradients),
        ("buckets in which gradients are reduced", rank.reduce_buckets),
        ("optimizer: moments and float32 masters", rank.optimizer),
        ("activations of a micro-batch, estimated", rank.activations),
        ("one chunk of vocabulary logits", rank.logits),
        ("in all", rank.device),
    ):
        table.add_row(name, f"{size / 1e9:.2f}")
    if rank.host:
        table.add_row("on the host: optimizer and its gradients", f"{rank.host / 1e9:.2f}")
    return table
