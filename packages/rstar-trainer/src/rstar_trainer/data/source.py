"""The problems that a recipe names: training and held-out, from its generator or its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rstar_protos.errors import UserInputError
from rstar_trainer.data.problem import TrainProblem
from rstar_trainer.data.reader import read_problems
from rstar_trainer.problems import TAGS, Problem, Split, generate
from rstar_trainer.recipe import DataSource, Recipe

GENERATORS = ("quickstart",)

# Held-out problems do not depend on the recipe's seed, so that runs with different seeds compare.
_HELDOUT_SEED = 0


@dataclass(frozen=True)
class HeldoutProblems:
    """Problems that are only measured on.

    Attributes:
        problems: evaluated at every entry; a subset is a prefix of it.
        unseen: by tag, problems of a kind that training never shows; reported apart.
    """

    problems: list[TrainProblem]
    unseen: Mapping[str, list[TrainProblem]] = field(default_factory=dict)


def load_training_problems(recipe: Recipe) -> list[TrainProblem]:
    """The training problems of all stages, checked to have integer answers where `data.train.answers` wants that.

    Raises:
        UserInputError: unknown generator, unusable file or row, or fewer problems than a step needs.
    """
    problems = _load("data.train", recipe.data.train, "train", recipe.seed)
    for stage in recipe.stages:
        if stage.problems_under_way > len(problems):
            also = ", partial.extra_problems included" if stage.partial else ""
            accepted = f"at most the {len(problems)} training problems{also}"
            raise UserInputError(f"stages.{stage.name}.problems_per_step", stage.problems_under_way, accepted)
    return problems


def load_heldout_problems(recipe: Recipe) -> HeldoutProblems:
    """The held-out problems: at most `evaluation.problems`, and `evaluation.unseen` of each unseen kind.

    Raises:
        UserInputError: unknown generator, unusable file or row.
    """
    source = recipe.data.heldout
    problems = _load("data.heldout", source, "heldout", _HELDOUT_SEED)
    unseen = {}
    if source.generator is not None and recipe.evaluation.unseen:
        for tag in TAGS:
            drawn = generate("heldout", recipe.evaluation.unseen, _HELDOUT_SEED, tag=tag)
            unseen[tag] = [_converted(problem) for problem in drawn]
    return HeldoutProblems(problems[: recipe.evaluation.problems], unseen)


def _load(name: str, source: DataSource, split: Split, seed: int) -> list[TrainProblem]:
    if source.path is not None:
        return read_problems(source.path, limit=source.count, integers_only=source.answers == "integer")
    if source.generator not in GENERATORS:
        raise UserInputError(f"{name}.generator", source.generator, f"one of {', '.join(GENERATORS)}")
    drawn = generate(split, source.count, seed, families=source.families or None)
    return [_converted(problem) for problem in drawn]


def _converted(problem: Problem) -> TrainProblem:
    return TrainProblem(
        problem_id=problem.problem_id,
        text=problem.text,
        answer=problem.answer,
        source=f"quickstart/{problem.family}",
        tags=(problem.family, *problem.tags),
    )
