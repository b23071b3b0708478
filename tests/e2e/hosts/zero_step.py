"""One rank of a ZeRO-1 step over gloo: each rank has its own data, Adam its own part of the state.

Adam's first step moves every weight by the learning rate against the sign of its gradient, so the weights that are
printed are known beforehand: 1 - 0.1.
"""

import os

import deepspeed
import torch

# Collectives over shared memory would have to be compiled first, and so would the CPU Adam below.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
# Ranks meet in a file of the folder they share: a free port may be taken before they listen on it.
deepspeed.init_distributed(
    "gloo",
    init_method=f"file://{os.getcwd()}/meeting",
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    auto_mpi_discovery=False,
)
layer = torch.nn.Linear(1, 2, bias=False)
torch.nn.init.ones_(layer.weight)
engine, *_ = deepspeed.initialize(
    model=layer,
    config={
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.0, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    },
)
loss = engine(torch.full((1, 1), 1.0 + int(os.environ["RANK"]))).sum()
engine.backward(loss)
engine.step()
print([[round(value, 4) for value in row] for row in layer.weight.tolist()], flush=True)
torch.distributed.barrier()
# Without the interpreter's own end: gloo's threads may outlive their group there, and that aborts the process.
os._exit(0)
