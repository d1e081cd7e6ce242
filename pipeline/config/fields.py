"""The fields of a training run, each with its meaning and its own checks."""

import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import yaml

from pipeline.baselines.systems import BaselineConfig, Name
from pipeline.common.batch_spans import parse_spans
from pipeline.model import LocostConfig

PREPARE_DATA = (
    "python -m preprocessing.pretrain --input 'c4/en/c4-train.*.json.gz' "
    "--tokenizer t5.model --output shards/c4-train"
)


@dataclass(kw_only=True)
class DataConfig:
    """The datasets, and how samples are cut."""

    train: str = ""
    """Dataset folder (shards and manifest.json) to train on; required, and in no recipe. On a store
    (s3://, gs://, hf://) it needs data.stage_dir, as do the other datasets."""
    mixture: dict[str, float] = field(default_factory=dict)
    """Further dataset folders to train on, each with its number of samples per sample of
    data.train: `--data.mixture '{shards/books: 0.25}'` takes every fifth sample from books."""
    validation: str | None = None
    """Dataset folder to validate on; null: no validation."""
    stage_dir: str | None = None
    """Folder on each node's local disk to copy shards to before they are read; null: read them in
    place. Needs room for 2 x 16 shards (about 8 GB) per dataset; copies are removed at the end."""
    source_length: int = 0
    """Maximum source length in tokens with EOS; longer ones are truncated; 0: as in the shards."""
    target_length: int = 0
    """Maximum target length in tokens with EOS; longer ones are truncated; 0: as in the shards."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError(
                "data.train is not set: give --data.train DIR, a folder of shards made by "
                f"`{PREPARE_DATA}`"
            )
        for folder, weight in self.mixture.items():
            if not (weight > 0 and math.isfinite(weight)):
                raise ValueError(
                    f"data.mixture gives {folder} the weight {weight}, expected a number above 0 "
                    "(its samples per sample of data.train); remove it or set another weight"
                )
        for name in ("source_length", "target_length"):
            _check(
                getattr(self, name) == 0 or getattr(self, name) >= 2,
                f"data.{name}",
                getattr(self, name),
                "at least 2 tokens (one and EOS), or 0 for no limit",
            )


@dataclass(kw_only=True)
class TrainConfig:
    """Optimisation, checkpoints, validation and monitoring."""

    max_steps: int = 1_000_000
    """Optimiser steps of the whole run; an upper limit if max_epochs is set."""
    max_epochs: int = 0
    """Passes over the training samples, rounded up to whole steps; 0: max_steps alone decides."""
    batch_size: int = 256
    """Samples per optimiser step, over all processes and micro-batches."""
    accumulation: int = 1
    """Micro-batches per process and optimiser step (gradient accumulation); 0: the fewest of 1, 2,
    4, ... that fit in memory, rehearsed at the start and kept in RUN/choices.json."""
    memory_limit_gib: float = 0.0
    """With accumulation 0: GiB that a process may take; 0: what is free on its GPU, on CPUs its
    share of what is free in the node or the job."""
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"
    """Learning-rate schedule: inverse_sqrt holds the peak for warmup_steps, then decays with
    1/sqrt(step); linear rises over warmup_steps and decays to 0 at max_steps."""
    peak_lr: float = 0.02
    """Peak learning rate; also the first step's, except with the linear schedule."""
    embedding_lr_scale: float = 1.0
    """Learning rate of the embedding relative to the other parameters: in a short run its N(0, 1)
    entries need a higher rate than the small projections tolerate."""
    warmup_steps: int = 10_000
    """Steps at the peak before the decay (inverse_sqrt), or up to the peak (linear)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates for the first and second moments."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay; never applied to the SSM's parameters."""
    clip_norm: float = 1.0
    """Maximum norm of the whole gradient (gradient clipping)."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of matrix products; parameters, optimiser, SSM kernel and FFT are always fp32."""
    attention: Literal["auto", "sdpa", "flash", "varlen"] = "auto"
    """Attention kernel of the decoder. sdpa: torch's, on padded rows; flash: flash-attn's, without
    padding; varlen: torch's own flash attention, without padding or dropout. auto: the fastest of
    those that work, if more than 5 % faster than sdpa. flash and varlen need CUDA and bf16."""
    recompute_activations: bool = False
    """Gradient (activation) checkpointing: keep only the inputs of each block, recompute the
    rest in the backward pass; less memory, more time."""
    kernel_build: Literal["auto", "torch", "triton"] = "auto"
    """How the encoder's convolution kernels and their gradients are computed. torch: by matrix
    products; triton: in three or four launches on a GPU. auto: as for attention."""
    fft: Literal["auto", "rows", "pairs"] = "auto"
    """How training batches are convolved. rows: each in a real FFT; pairs: two rows in a complex
    one. auto: as for attention; on a CPU rows."""
    blocks: Literal["auto", "eager", "compiled"] = "auto"
    """Whether blocks are compiled (torch.compile). auto: as for attention; on a CPU, where that
    takes minutes, and with ZeRO stage 3 they are not."""
    sequence_parallel_size: int = 1
    """Neighbouring processes that share each document (sequence parallelism), for sources too long
    for one GPU: a divisor of the number of processes and of model.d_model; 1: none."""
    seed: int = 0
    """Random seed for the initial weights, the sample order and dropout."""
    checkpoint_every: int = 1_000
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep, in addition to the best one."""
    keep_every: int = 0
    """Also keep the checkpoints of these steps, a multiple of checkpoint_every, for a return after
    a divergence; 0: none."""
    resume_from: int | None = None
    """Go back to the kept checkpoint after this step; later ones are set aside in RUN. A restart
    with the same setting resumes the run as it then stands."""
    skip_batches: str = ""
    """Global batches to leave out, by their step in a run that skips none: 4990-5010,7000-7005."""
    validate_every: int = 1_000
    """Steps between validations (also after the last step), if data.validation is set."""
    validation_samples: int = 512
    """Validate on the first N samples of the validation set; 0: all."""
    validation_batch_size: int = 16
    """Samples that a process validates at once."""
    validation_rouge: bool = False
    """Also generate summaries, and select the best checkpoint by Mean ROUGE instead of loss."""
    validation_source_use: bool = False
    """Also validate with each source replaced by another sample's. The increase in loss, in nats
    per target token, is logged as `source_use`; 0: no evidence that the model uses the source."""
    max_new_tokens: int = 512
    """Maximum length of summaries generated in validation, in tokens."""
    early_stopping: int = 0
    """Early stopping: end the run after N validations without improvement; 0: never."""
    stop_after: str | None = None
    """Time after the start of the process at which it saves and stops, to be resumed: 19h30m."""
    max_skipped_updates: int = 10
    """Consecutive skipped updates (loss or gradient not finite) after which the run fails."""
    spike_deviations: float = 6.0
    """A loss this many standard deviations above the recent mean counts as a spike; 0: never."""
    skip_spikes: bool = False
    """Skip the update of a spike, like that of a loss that is not finite."""
    startup_check: bool = True
    """Before the first step, test network speed, equal weights on all ranks, memory for the
    longest batch, and one validation batch."""
    hang_timeout: float = 600.0
    """Seconds without progress after which a process dumps its stack and ends the job; 0: never."""
    picture_every: int = 1_000
    """Steps between plots of the SSM's time scales and kernels in TensorBoard; 0: none."""
    peak_tflops: float = 0.0
    """Peak bf16 TFLOP/s of the device, for the MFU; 0: from its data sheet, if known."""
    carbon_intensity: float = 58.0
    """Grams of CO2 per kWh, to convert measured energy to emissions; 58: the paper's France."""

    def __post_init__(self) -> None:
        for name in (
            "max_steps", "batch_size", "checkpoint_every", "keep_checkpoints",
            "validate_every", "validation_batch_size", "max_new_tokens", "max_skipped_updates",
            "sequence_parallel_size",
        ):  # fmt: skip
            value = getattr(self, name)
            _check(value >= 1, f"train.{name}", value, "at least 1")
        for name in (
            "warmup_steps", "weight_decay", "validation_samples", "seed", "max_epochs",
            "early_stopping", "keep_every", "accumulation",
        ):  # fmt: skip
            value = getattr(self, name)
            _check(value >= 0, f"train.{name}", value, "at least 0")
        for name in ("spike_deviations", "hang_timeout", "memory_limit_gib"):
            value = getattr(self, name)
            _check(value >= 0 and math.isfinite(value), f"train.{name}", value, "at least 0")
        _check(
            self.keep_every % self.checkpoint_every == 0,
            "train.keep_every", self.keep_every,
            f"0 or a multiple of train.checkpoint_every {self.checkpoint_every}",
        )  # fmt: skip
        _check(
            self.resume_from is None or self.resume_from >= 1,
            "train.resume_from", self.resume_from, "the step of a kept checkpoint",
        )  # fmt: skip
        try:
            parse_spans(self.skip_batches)
        except ValueError:
            _check(
                False, "train.skip_batches", repr(self.skip_batches),
                "ascending spans from 1, such as 4990-5010,7000-7005",
            )  # fmt: skip
        if self.stop_after is not None:
            seconds(self.stop_after)
        for name in ("peak_lr", "embedding_lr_scale", "clip_norm"):
            value = getattr(self, name)
            _check(value > 0 and math.isfinite(value), f"train.{name}", value, "a number above 0")
        _check(
            all(0 <= beta < 1 for beta in self.betas),
            "train.betas", list(self.betas), "two numbers from 0 to below 1",
        )  # fmt: skip


OF_BASELINES = ("dropout", "cross_attention_initialisation")
"""Fields of LOCOST's model that apply to a baseline too."""


@dataclass(kw_only=True)
class RunConfig:
    """A whole run: `model` holds LocostConfig's fields except the vocabulary size, the dataset's.

    With a `baseline`, `model` holds only OF_BASELINES, and `baseline_settings` its other settings.
    """

    output: str
    deepspeed_config: str
    init_from: str | None
    baseline: Name | None = None
    baseline_settings: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any]
    data: DataConfig
    train: TrainConfig

    def __post_init__(self) -> None:
        if self.baseline:
            self._check_baseline()
            self.model = {name: self.model[name] for name in OF_BASELINES}
        elif self.baseline_settings:
            raise ValueError(
                f"model.baseline_settings is {self.baseline_settings} without a baseline; give "
                "--model.baseline NAME, or remove it"
            )
        if self.train.early_stopping and not self.data.validation:
            raise ValueError(
                f"train.early_stopping is {self.train.early_stopping} without validation data; "
                "give --data.validation DIR, or --train.early_stopping 0"
            )

    def _check_baseline(self) -> None:
        """Raise ValueError for settings that only LOCOST has."""
        for name, value in self.model.items():
            if name not in OF_BASELINES and value != getattr(LocostConfig, name):
                raise ValueError(
                    f"model.{name} is {value}, a setting of LOCOST, with --model.baseline "
                    f"{self.baseline}, which has its own (--model.baseline_settings "
                    "'{d_model: 512}'); leave one of the two out"
                )
        for name in ("attention", "kernel_build", "fft", "blocks"):
            if getattr(self.train, name) != "auto":
                raise ValueError(
                    f"train.{name} is {getattr(self.train, name)}, which is for LOCOST's blocks; "
                    f"with --model.baseline {self.baseline} leave it out"
                )
        if self.train.sequence_parallel_size > 1:
            raise ValueError(
                f"train.sequence_parallel_size is {self.train.sequence_parallel_size}, which only "
                f"LOCOST has, with --model.baseline {self.baseline}; leave it out"
            )
        if self.init_from and self.baseline_settings:
            raise ValueError(
                f"model.baseline_settings is {self.baseline_settings}, but --model.init_from "
                f"{self.init_from} brings its own settings; omit one of the two"
            )

    def architecture(self, vocab_size: int) -> LocostConfig | BaselineConfig:
        """The model's configuration with the vocabulary size of the dataset's tokenizer."""
        if self.baseline:
            return BaselineConfig(
                name=self.baseline,
                vocab_size=vocab_size,
                settings=self.baseline_settings,
                dropout=self.model["dropout"],
            )
        return LocostConfig(vocab_size=vocab_size, **self.model)

    def as_dict(self) -> dict[str, Any]:
        """The configuration nested as in recipes, JSON types only."""
        baseline = {"baseline": self.baseline, "baseline_settings": self.baseline_settings}
        return {
            "output": self.output,
            "deepspeed_config": self.deepspeed_config,
            "model": {
                "init_from": self.init_from,
                **(baseline if self.baseline else {}),
                **self.model,
            },
            "data": asdict(self.data),
            "train": {**asdict(self.train), "betas": list(self.train.betas)},
        }

    def to_yaml(self) -> str:
        """The content of the run folder's `config.yaml`."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def seconds(duration: str) -> int:
    """A duration such as 19h30m, 45m or 1h0m30s in seconds. Raises ValueError for anything else."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", duration)
    hours, minutes, rest = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + rest
    _check(total > 0, "train.stop_after", repr(duration), "a duration such as 19h30m, 45m or 90s")
    return total


def _check(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}, expected {expected}; set --{name}")
