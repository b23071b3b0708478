"""Recipe sections that hold for the whole run: model, services, engine, data, tool, SFT, evaluation, ...

Stages have their own file. Defaults are the ones that are right for a laptop with two cores.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rstar_trainer.recipe._base import NoneFromText, OptionalText, Section


class LoraSection(Section):
    """Low-rank adapters: less memory for gradients and optimizer; engines are sent the merged weights."""

    rank: int = Field(default=16, ge=1, description="rank of the adapters")
    alpha: float = Field(default=32.0, gt=0, description="adapters are scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="last parts of the names of the linear layers that get adapters",
    )


class ModelSettings(Section):
    """What is trained."""

    source: str = Field(
        default="smollm2-135m",
        min_length=1,
        description='a name `rstar-model fetch` knows ("smollm2-135m") or a Hugging Face folder',
    )
    chat_format: str = Field(default="rstar", min_length=1, description="name of a chat format of rstar-model")
    autocast: Annotated[Literal["bfloat16"] | None, NoneFromText] = Field(
        default="bfloat16",
        description='dtype of the forward and backward pass over fp32 master weights; "none": fp32',
    )
    gradient_checkpointing: bool = Field(default=False, description="recompute activations: less memory, more time")
    liger: bool = Field(default=False, description="Liger's fused kernels; needs a GPU and the package liger-kernel")
    lora: LoraSection | None = Field(
        default=None, description="train low-rank adapters alone (package peft); none: all parameters"
    )
    threads: int = Field(default=0, ge=0, description="CPU threads of the trainer; 0: all cores")


class ServiceEndpoint(Section):
    """Where one service is: a child process of the trainer, or a server that runs elsewhere."""

    endpoint: str = Field(
        default="embedded",
        description='"embedded" (started and stopped by the trainer), "grpc://host:port", '
        '"grpcs://host:port" (TLS) or "unix:/path"',
    )
    ca: Path | None = Field(
        default=None, description="PEM file with the authority that signed the server's certificate"
    )
    certificate: Path | None = Field(default=None, description="PEM file with this client's certificate (mutual TLS)")
    private_key: Path | None = Field(default=None, description="PEM file with this client's private key")
    token_file: Path | None = Field(default=None, description="file with the bearer token")

    @field_validator("endpoint")
    @classmethod
    def _known_form(cls, value: str) -> str:
        if value != "embedded" and not re.fullmatch(r"unix:/.+|grpcs?://[^/]+:\d+", value):
            raise ValueError('"embedded", "grpc://host:port", "grpcs://host:port" or "unix:/path"')
        return value

    @model_validator(mode="after")
    def _key_with_certificate(self) -> Self:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key together, or neither")
        if (self.ca or self.certificate) and not self.endpoint.startswith("grpcs://"):
            raise ValueError(f'an endpoint "grpcs://host:port" with ca or certificate, not "{self.endpoint}"')
        return self

    @property
    def embedded(self) -> bool:
        """Whether the trainer starts this service itself."""
        return self.endpoint == "embedded"


class ServicesSettings(Section):
    """Where the four services are that a run uses."""

    sandbox: ServiceEndpoint = Field(default=ServiceEndpoint(), description="runs the policy's code")
    reward: ServiceEndpoint = Field(default=ServiceEndpoint(), description="compares answers with gold answers")
    rollout: ServiceEndpoint = Field(default=ServiceEndpoint(), description="generates trajectories")
    sampling: ServiceEndpoint = Field(default=ServiceEndpoint(), description="resamples scored groups (RoC)")


class EngineSettings(Section):
    """The generation engine behind an embedded rollout service."""

    type: Literal["transformers", "vllm"] = Field(
        default="transformers", description='"transformers" (deterministic, any machine) or "vllm"'
    )
    dtype: Literal["bfloat16", "float32"] = Field(default="bfloat16", description="dtype of the engine's weights")
    deterministic: bool = Field(
        default=True, description="same recipe and seed give the same tokens, bit for bit (transformers engine only)"
    )
    max_batch: int = Field(default=96, ge=1, description="most sequences generated together")
    kv_cache_gib: float = Field(
        default=2.0,
        gt=0,
        description="memory for the KV cache of running sequences, GiB; the transformers engine keeps as much again of "
        "waiting ones",
    )
    max_model_len: int = Field(default=1024, ge=16, description="most tokens of prompt and response together")
    weights_dir: Path | None = Field(
        default=None,
        description="folder that weights pass through; one in memory, such as /dev/shm, keeps them off the disk; "
        "none: the run folder",
    )
    transfer: Literal["files", "shared_memory", "nccl", "ipc"] = Field(
        default="files",
        description='how weights come to the engine: "files", through weights_dir; with vLLM also "shared_memory", for '
        'an engine on the CPUs of this machine, "nccl" (RCCL), for one on GPUs of its own, and "ipc", for '
        "one on the learner's GPU",
    )
    gpu: Annotated[int | None, NoneFromText] = Field(
        default=None,
        ge=0,
        description="number of the GPU that an embedded vLLM engine computes on, as the driver counts; none: the first "
        "that is visible",
    )
    sleep_level: int = Field(
        default=0,
        ge=0,
        le=2,
        description="engine and learner share a device: the engine gives memory back while the learner computes; 1: "
        "its caches, and vLLM moves its weights to the host; 2: vLLM drops its weights; 0: never",
    )


class DataSource(Section):
    """Problems from a built-in generator or from a file."""

    generator: OptionalText = Field(
        default=None, description='name of a built-in generator; default, without a path: "quickstart"'
    )
    path: Path | None = Field(
        default=None, description="JSONL or parquet file: problem and answer columns, or the verl layout"
    )
    count: int = Field(
        default=0,
        ge=0,
        description="problems to generate, or most rows to take from the file; 0: all rows of the file",
    )
    families: tuple[str, ...] = Field(
        default=(), description="only these families of the generator; none named: all of them"
    )
    answers: Literal["integer", "any"] = Field(
        default="integer", description='"integer": any other answer in the data is an error'
    )

    @model_validator(mode="before")
    @classmethod
    def _default_source(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("generator") is None and values.get("path") is None:
            return {**values, "generator": "quickstart"}
        return values

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.generator is not None and self.path is not None:
            raise ValueError("generator or path, not both")
        if self.generator is not None and self.count == 0:
            raise ValueError("count of at least 1 with a generator")
        if self.path is not None and self.families:
            raise ValueError("families with a generator only, not with path")
        return self


class DataSettings(Section):
    """What is trained on and what is measured on."""

    train: DataSource = Field(
        default=DataSource(generator="quickstart", count=2000), description="problems of the RL stages"
    )
    heldout: DataSource = Field(
        default=DataSource(generator="quickstart", count=128), description="problems of every evaluation"
    )


class ToolSettings(Section):
    """Limits of one call of the code tool."""

    wall_seconds: float = Field(default=5.0, gt=0, description="time limit, seconds")
    memory_mib: int = Field(default=1024, ge=64, description="memory limit, MiB")
    max_output_tokens: int = Field(
        default=256, ge=1, description="most tokens of a tool response that the policy is shown"
    )

    @property
    def memory_bytes(self) -> int:
        """The memory limit as the services take it."""
        return self.memory_mib * 2**20


class SftSettings(Section):
    """Supervised fine-tuning that teaches the tool-call format (paper section 4)."""

    enabled: bool = Field(default=True, description="off: the stages start from the base model")
    examples: int = Field(default=128, ge=1, description="examples to generate, or most rows to take from path")
    path: Path | None = Field(
        default=None,
        description="conversations in a layout that `rstar-trainer data sft` reads, or scripted ones; "
        "none: the built-in generator",
    )
    max_tokens: int = Field(default=4096, ge=16, description="longer conversations are left out, tokens")
    families: tuple[str, ...] = Field(
        default=(),
        description="only these families of the generator; what SFT leaves out, RL has to find; none: all of them",
    )
    steps: int = Field(default=16, ge=1, description="optimizer updates")
    batch_size: int = Field(default=8, ge=1, description="examples per update")
    micro_batch_tokens: int = Field(
        default=4096, ge=16, description="tokens of one forward and backward pass; no influence on the gradient"
    )
    learning_rate: float = Field(default=1e-4, gt=0, description="peak learning rate of AdamW")
    warmup_fraction: float = Field(default=0.04, ge=0, lt=1, description="share of the steps with linear warm-up")
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description="learning rate after the warm-up: cosine decay to 0, or constant"
    )
    checkpoint_every_steps: int = Field(default=200, ge=1, description="updates between checkpoints; one also ends SFT")


class EvaluationSettings(Section):
    """Evaluation on held-out problems: the base model, after SFT and after each stage."""

    problems: int = Field(default=128, ge=1, description="held-out problems of a full evaluation")
    subset: int = Field(default=64, ge=1, description="held-out problems of the other evaluations: the first ones")
    full: tuple[str, ...] = Field(
        default=("sft",), description="report entries with a full evaluation; the last entry always has one"
    )
    samples: int = Field(default=1, ge=1, description="rollouts per problem")
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature")
    max_turns: int = Field(default=4, ge=1, description="most assistant turns")
    max_response_tokens: int = Field(default=384, ge=8, description="most tokens after the prompt")
    ablate_tool: bool = Field(default=True, description="evaluate the final policy once more with the tool disabled")
    unseen: int = Field(
        default=32,
        ge=0,
        description="held-out problems of each kind absent from training (a family, a wording), reported "
        "apart with each full evaluation; with a generator only; 0: none",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.subset > self.problems:
            raise ValueError(f"subset of at most problems ({self.problems}), not {self.subset}")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("samples = 1 at temperature 0: all samples of a problem would be equal")
        return self


class CheckpointSettings(Section):
    """When a run saves its state, so that `rstar-trainer resume` continues bit for bit."""

    every_steps: int = Field(default=1, ge=1, description="RL steps between checkpoints; one also ends each stage")
    keep: int = Field(default=3, ge=1, description="checkpoints kept; older ones are removed")


class OptimizerSettings(Section):
    """AdamW, for SFT and for the stages."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="decay of the first and the second moment"
    )
    eps: float = Field(default=1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay")
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradient norm is clipped to this")
