"""The DeepSpeed engine around the model."""

import deepspeed
import deepspeed.ops
import torch
from deepspeed.runtime import compiler
from deepspeed.utils import set_z3_leaf_modules

from pipeline.config import RunConfig
from pipeline.model import Locost
from pipeline.model.layers import Block
from pipeline.training.optimizer import parameter_groups
from pipeline.training.prepare import PreparedRun

# Otherwise DeepSpeed compiles a shared-memory extension when the processes join; gloo serves.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
# Otherwise the kernels of its Muon optimizer, unused here, load torch's compiler when the engine
# starts: two seconds of every process.
compiler.compile = lambda: compiler.dummy_decorator


def make_engine(config: RunConfig, prepared: PreparedRun) -> deepspeed.DeepSpeedEngine:
    """ZeRO around the prepared model, with torch's AdamW; a collective."""
    prepared.model.recompute_activations(config.train.recompute_activations)
    if isinstance(prepared.model, Locost):
        # ZeRO-3 gathers a whole block's parameters at its entry: the block multiplies by several
        # layers' weights together, outside of those layers' own forward passes.
        set_z3_leaf_modules(prepared.model, [Block])
    optimizer = torch.optim.AdamW(
        parameter_groups(prepared.model, config.train),
        lr=config.train.peak_lr,
        betas=config.train.betas,
        fused=torch.cuda.is_available() or None,  # one kernel instead of hundreds
    )
    engine, *_ = deepspeed.initialize(
        model=prepared.model, optimizer=optimizer, config=prepared.settings
    )
    assert_exact_parameters(engine.module)
    return engine


def assert_exact_parameters(model: torch.nn.Module) -> None:
    """Every parameter is fp32 and real: DeepSpeed silently casts or drops others."""
    wrong = [
        f"{name} ({parameter.dtype})"
        for name, parameter in model.named_parameters()
        if parameter.dtype != torch.float32
    ]
    if wrong:
        raise AssertionError(f"parameters not in fp32 after initialisation: {', '.join(wrong)}")
