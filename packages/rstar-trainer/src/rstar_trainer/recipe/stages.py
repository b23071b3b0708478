"""One RL stage of a recipe: its limits, data, learning rate, loss and resampling (paper sections 3 and 4)."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rstar_trainer.recipe._base import NoneFromText, Section


class HardFilterSettings(Section):
    """The offline filter before a stage on hard problems: those solved every time are dropped."""

    problems: int = Field(default=64, ge=1, description="training problems the current policy answers")
    samples: int = Field(default=8, ge=1, description="rollouts per problem; all correct: the problem is dropped")


class LossSettings(Section):
    """The clipped policy-gradient loss (paper equation 6)."""

    clip_low: float = Field(default=0.2, gt=0, lt=1, description="importance ratio is clipped below 1 - clip_low")
    clip_high: float = Field(default=0.28, gt=0, description="importance ratio is clipped above 1 + clip_high")
    aggregation: Literal["group_token_mean", "batch_token_mean", "sequence_mean", "dr_grpo"] = Field(
        default="group_token_mean",
        description='"group_token_mean": token mean in each group, then mean over groups (paper); "batch_token_mean": '
        'token mean over the batch; "sequence_mean": token mean in each rollout, then mean over rollouts; "dr_grpo": '
        "sum over a rollout's tokens by constant_tokens, then mean over rollouts",
    )
    constant_tokens: Annotated[Annotated[int, Field(ge=1)] | None, NoneFromText] = Field(
        default=None, description="divisor of dr_grpo, tokens; usually max_response_tokens; none with the others"
    )
    advantage: Literal["std", "mean"] = Field(
        default="std", description='"std": (r - mean) / std within the group; "mean": r - mean'
    )
    updates_per_step: int = Field(default=1, ge=1, description="optimizer updates per rollout step")
    engine_ratio_cap: Annotated[Annotated[float, Field(ge=1)] | None, NoneFromText] = Field(
        default=None,
        description="truncated importance sampling between engine and trainer: each token's term is multiplied by "
        "min(pi_trainer / pi_engine, cap), such as 2; none: off (paper)",
    )
    micro_batch_tokens: int = Field(
        default=4096, ge=16, description="tokens of one forward and backward pass; no influence on the gradient"
    )

    @model_validator(mode="after")
    def _divisor_with_dr_grpo(self) -> Self:
        if (self.aggregation == "dr_grpo") != (self.constant_tokens is not None):
            raise ValueError('constant_tokens together with aggregation = "dr_grpo", and only there')
        return self


class RocSettings(Section):
    """Resample-on-Correct."""

    enabled: bool = Field(default=True, description="off: G of the rollouts are kept uniformly at random")
    epsilon: float = Field(default=0.1, gt=0, description="positives are drawn with weight 1 / (p_total + epsilon)")


class PartialSettings(Section):
    """Partial rollouts: a step does not wait for its longest rollouts; the next one goes on with them.

    Their first tokens are from an earlier policy. The loss corrects for that with `loss.engine_ratio_cap`: what the
    engine recorded when it drew a token is compared with the policy that is trained.
    """

    extra_problems: int = Field(
        ge=1,
        description="problems under way beyond problems_per_step; when the rollouts of problems_per_step problems have "
        "ended, the others are stopped and go on in the next step",
    )
    max_steps: int = Field(
        default=1, ge=1, description="steps that may end without a problem once it is begun; then one waits for it"
    )


class Stage(Section):
    """One RL stage."""

    name: str = Field(description='name in logs and in the report, such as "rl-1"')
    steps: int = Field(ge=1, description="rollout steps")
    problems_per_step: int = Field(ge=1, description="problems (groups) per step")
    group_size: int = Field(ge=2, description="G: rollouts of a problem that are trained on")
    rollouts_per_problem: int = Field(ge=2, description="rollouts generated for a problem; default 2 G")
    max_turns: int = Field(ge=1, description="most assistant turns of a rollout")
    max_response_tokens: int = Field(ge=8, description="most tokens after the prompt, tool results included")
    learning_rate: float = Field(gt=0, description="learning rate of AdamW after the warm-up")
    warmup_steps: int = Field(default=0, ge=0, description="steps with linear warm-up of the learning rate")
    temperature: float = Field(default=1.0, gt=0, description="sampling temperature; the loss uses the same one")
    data: Literal["all", "hard"] = Field(
        default="all", description='"all" training problems, or those that "hard_filter" leaves ("hard")'
    )
    hard_filter: HardFilterSettings | None = Field(default=None, description='settings of data = "hard"')
    reset_optimizer: bool = Field(default=False, description="start the stage with fresh optimizer moments")
    loss: LossSettings = Field(default=LossSettings(), description="loss settings")
    roc: RocSettings = Field(default=RocSettings(), description="Resample-on-Correct settings")
    refill_rounds: int = Field(
        default=0, ge=0, description="rounds in which rejected groups are replaced by groups of further problems"
    )

    partial: PartialSettings | None = Field(
        default=None, description="partial rollouts; none: a step waits for all of its rollouts"
    )

    @property
    def problems_under_way(self) -> int:
        """Most problems that are rolled out at once."""
        return self.problems_per_step + (self.partial.extra_problems if self.partial else 0)

    @model_validator(mode="before")
    @classmethod
    def _default_rollouts(cls, values: Any) -> Any:
        # Twice the group size is the paper's over-sampling. Other values are left to the field's check.
        if isinstance(values, dict) and "rollouts_per_problem" not in values:
            group_size = str(values.get("group_size"))
            if group_size.isascii() and group_size.isdigit():
                return {**values, "rollouts_per_problem": 2 * int(group_size)}
        return values

    @field_validator("name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        first_is_letter = value[:1].isascii() and value[:1].isalpha()
        if not first_is_letter or not all(c.isascii() and (c.isalnum() or c in "-_") for c in value):
            raise ValueError("a letter followed by letters, digits, - or _")
        if value in ("base", "sft", "hard"):
            raise ValueError('a name other than "base", "sft" and "hard", which the report uses itself')
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.group_size > self.rollouts_per_problem:
            raise ValueError(
                f"group_size of at most rollouts_per_problem ({self.rollouts_per_problem}), not {self.group_size}"
            )
        if self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps of at most steps ({self.steps}), not {self.warmup_steps}")
        if self.partial is not None and self.loss.engine_ratio_cap is None:
            raise ValueError(
                "loss.engine_ratio_cap, such as 2, with partial: tokens of earlier policies have to be weighted"
            )
        if self.partial is not None and self.refill_rounds:
            raise ValueError(
                f"refill_rounds = 0 with partial, not {self.refill_rounds}: problems are under way already"
            )
        if self.data == "hard":
            if self.hard_filter is None:
                raise ValueError('hard_filter settings (problems, samples) with data = "hard"')
            if self.hard_filter.problems < self.problems_under_way:
                under_way = "problems_per_step" + (" and partial.extra_problems" if self.partial else "")
                raise ValueError(
                    f"hard_filter.problems of at least {under_way} ({self.problems_under_way}), "
                    f"not {self.hard_filter.problems}"
                )
        return self
