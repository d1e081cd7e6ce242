"""The reference that trainings are held against: torch alone, one process, whole batches."""

from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from trainer_runs import SMALL

from pipeline.data.collate import collate
from pipeline.data.order import GlobalOrder
from pipeline.model import Locost, LocostConfig
from pipeline.shards import Dataset

BATCH, PEAK, WARMUP = 8, 0.01, 4  # as trainer_runs.SETTINGS


def plain_updates(
    folder: Path, steps: int, precision: str = "fp32", skipped: Collection[int] = ()
) -> Iterator[tuple[float, float]]:
    """(loss, gradient norm before clipping) of every update, without those `skipped` (from 1).

    AdamW at the formula's learning rates, the model of trainer_runs.SMALL.
    """
    dataset = Dataset(folder)
    torch.manual_seed(0)
    model = Locost(
        LocostConfig(
            vocab_size=dataset.manifest["tokenizer"]["vocab_size"],
            **{SMALL[k].split(".")[1]: int(SMALL[k + 1]) for k in range(0, len(SMALL), 2)},
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    order = GlobalOrder([[shard.samples for shard in dataset.shards]], BATCH, 0)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = PEAK * ((WARMUP + 1) / max(step, WARMUP + 1)) ** 0.5
        batch = collate([dataset[ref.sample] for ref in order.samples(step - 1)], 0, 0)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(batch.input_ids, batch.attention_mask, batch.labels).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step not in skipped:
            optimizer.step()
        yield loss.item(), norm.item()
