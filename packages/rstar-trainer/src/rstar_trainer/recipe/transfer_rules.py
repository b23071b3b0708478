"""Which ways of weights to the engines go together with where engine and learner are."""

from rstar_trainer.recipe.learner_settings import LearnerSettings
from rstar_trainer.recipe.sections import EngineSettings, ServiceEndpoint

__all__ = ["transfer_problem"]


def transfer_problem(engine: EngineSettings, learner: LearnerSettings, rollout: ServiceEndpoint) -> str:
    """What is wrong, with field, what it should be and what it is; empty: nothing is."""
    return _sending_problem(engine, learner, rollout) or _sleep_problem(engine) or _gpu_problem(engine, rollout)


def _sleep_problem(engine: EngineSettings) -> str:
    if engine.sleep_level == 2 and engine.type != "vllm":
        return f'engine.sleep_level: should be 0 or 1 with engine.type = "{engine.type}", not 2: its weights stay'
    if engine.sleep_level and engine.transfer == "nccl":
        return (
            f'engine.sleep_level: should be 0 with engine.transfer = "nccl", not {engine.sleep_level}: engine and '
            "learner have GPUs of their own"
        )
    return ""


def _gpu_problem(engine: EngineSettings, rollout: ServiceEndpoint) -> str:
    if engine.gpu is not None and (engine.type != "vllm" or not rollout.embedded):
        return f"engine.gpu: should be none without an embedded vLLM engine, not {engine.gpu}"
    if engine.transfer == "nccl" and rollout.embedded and engine.gpu is None:
        return 'engine.gpu: should be a GPU that is not the learner\'s with engine.transfer = "nccl", not none'
    return ""


def _sending_problem(engine: EngineSettings, learner: LearnerSettings, rollout: ServiceEndpoint) -> str:
    way = engine.transfer
    if way == "files":
        return ""
    if engine.type != "vllm":
        return f'engine.transfer: should be "files" with engine.type = "{engine.type}", not "{way}": vLLM alone has it'
    if engine.weights_dir is not None:
        return f'engine.weights_dir: should be none with engine.transfer = "{way}", not "{engine.weights_dir}"'
    here = rollout.embedded or rollout.endpoint.startswith("unix:")
    if way in ("shared_memory", "ipc") and not here:
        return (
            f'engine.transfer: should be "files" or "nccl" with services.rollout.endpoint = "{rollout.endpoint}", not '
            f'"{way}": it does not leave the machine'
        )
    if learner.backend == "deepspeed":
        if here and learner.ray_address != "local":
            return (
                f'learner.ray_address: should be "local" with engine.transfer = "{way}" and a rollout service on this '
                f'machine, not "{learner.ray_address}": rank 0 has to reach it'
            )
        if way in ("nccl", "ipc") and not learner.gpus_per_rank:
            return f'learner.gpus_per_rank: should be more than 0 with engine.transfer = "{way}", not 0'
    return ""
