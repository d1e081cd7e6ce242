"""The one typed configuration of a training run.

A recipe (YAML) fills these dataclasses, the command line overrides single fields
(`--train.max_steps 100`), and the run folder keeps the result (`config.yaml`).
"""

import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, set_parsing_settings

from pipeline.baselines.systems import BaselineConfig, Name
from pipeline.model import LocostConfig

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_RECIPE = ROOT / "pipeline" / "recipes" / "pretrain_c4.yaml"
PREPARE_DATA = (
    "python -m preprocessing.pretrain --input 'c4/en/c4-train.*.json.gz' "
    "--tokenizer t5.model --output shards/c4-train"
)

set_parsing_settings(docstring_parse_attribute_docstrings=True)


@dataclass(kw_only=True)
class DataConfig:
    """What is read."""

    train: str = ""
    """Dataset folder of shards and manifest.json to train on; always given, no recipe names one."""
    mixture: dict[str, float] = field(default_factory=dict)
    """More dataset folders to train on, each with the samples drawn from it for one of data.train:
    `--data.mixture '{shards/books: 0.25}'` makes every fifth sample one of the books."""
    validation: str | None = None
    """Dataset folder to validate on; none: no validation."""
    stage_dir: str | None = None
    """Folder on each node's own disk, to which shards are copied before they are read; none: they
    are read where they lie. Takes twice 16 shards (about 8 GB) a dataset, removed at the end."""
    source_length: int = 0
    """Longest source, in tokens with EOS; longer ones are cut, 0 keeps what the shards hold."""
    target_length: int = 0
    """Longest target, in tokens with EOS; longer ones are cut, 0 keeps what the shards hold."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError(
                "data.train is not set: give --data.train DIR, a folder of shards as made by "
                f"`{PREPARE_DATA}`"
            )
        for folder, weight in self.mixture.items():
            if not (weight > 0 and math.isfinite(weight)):
                raise ValueError(
                    f"data.mixture gives {folder} the weight {weight}, expected a number above 0 "
                    "(samples drawn from it for one of data.train); leave it out or set another"
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
    """How it is trained."""

    max_steps: int = 1_000_000
    """Updates of the weights in the whole run, the most where max_epochs asks for fewer."""
    max_epochs: int = 0
    """Passes over the training samples, counted in updates rounded up; 0: max_steps decides."""
    batch_size: int = 256
    """Samples an update, over all processes and micro-batches."""
    accumulation: int = 1
    """Micro-batches a process runs for one update (gradient accumulation)."""
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"
    """Learning rate over the steps: peak, then falling with 1/sqrt(step); peak throughout; or
    rising over warmup_steps and falling to 0 at max_steps, both linearly."""
    peak_lr: float = 0.02
    """Highest learning rate; that of the first step but for the linear schedule."""
    embedding_lr_scale: float = 1.0
    """Learning rate of the embedding as a multiple of the others': entries drawn from N(0, 1) need
    more than the small projections stand in a short run."""
    warmup_steps: int = 10_000
    """Steps at the peak before inverse_sqrt begins to fall; steps up to it of linear."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay; never applied to the SSM's parameters."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; longer ones are scaled down to it."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Type of the matrix products; parameters, optimiser, SSM kernel and FFT are fp32 always."""
    attention: Literal["auto", "sdpa", "flash"] = "auto"
    """Kernel of the decoder's attention: torch's, flash-attn's, or flash-attn's where it runs."""
    recompute_activations: bool = False
    """Keep only the inputs of every block for the backward pass: less memory, more time."""
    compile: bool = False
    """Compile every block by torch.compile; lengths are then padded to multiples of 256."""
    seed: int = 0
    """Seed of the initial weights, the sample order and dropout."""
    checkpoint_every: int = 1_000
    """Steps between two checkpoints; the last step is always saved."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept, beside the best one."""
    validate_every: int = 1_000
    """Steps between two validations (and after the last step), where data.validation is given."""
    validation_samples: int = 512
    """Samples of the validation set used, the first of it; 0 means all."""
    validation_rouge: bool = False
    """Also generate summaries and keep the best checkpoint by Mean ROUGE instead of by loss."""
    validation_source_use: bool = False
    """Also take the loss with each source exchanged for another sample's. The difference in nats a
    target token, `source_use`, is what the source is worth to the model; 0: it does not read it."""
    max_new_tokens: int = 512
    """Longest summary generated in validation, in tokens."""
    early_stopping: int = 0
    """Validations without a better one after which the run ends; 0: never."""
    stop_after: str | None = None
    """Time from the process's start after which it saves and ends, to be gone on with: 19h30m."""
    max_skipped_updates: int = 10
    """Updates skipped in a row (loss or gradient not finite) that end the run as failed."""
    spike_deviations: float = 6.0
    """A loss this many standard deviations above the last ones' mean is a spike; 0: never."""
    skip_spikes: bool = False
    """Skip the update of a spike, as that of a loss that is not finite."""
    startup_check: bool = True
    """Before the first step: speed of the links, weights alike, memory enough for the longest."""
    hang_timeout: float = 600.0
    """Seconds without progress after which a process ends the job with its stack; 0: never."""
    picture_every: int = 1_000
    """Steps between two pictures of the SSM's time scales and kernels in TensorBoard; 0: none."""
    peak_tflops: float = 0.0
    """The device's bf16 peak in TFLOP/s, for the MFU; 0: that of its data sheet, where known."""
    carbon_intensity: float = 58.0
    """Grams of CO2 a kWh, for the emissions of the measured energy; the paper's France: 58."""

    def __post_init__(self) -> None:
        for name in (
            "max_steps", "batch_size", "accumulation", "checkpoint_every", "keep_checkpoints",
            "validate_every", "max_new_tokens", "max_skipped_updates",
        ):  # fmt: skip
            value = getattr(self, name)
            _check(value >= 1, f"train.{name}", value, "at least 1")
        for name in (
            "warmup_steps", "weight_decay", "validation_samples", "seed", "max_epochs",
            "early_stopping",
        ):  # fmt: skip
            value = getattr(self, name)
            _check(value >= 0, f"train.{name}", value, "at least 0")
        for name in ("spike_deviations", "hang_timeout"):
            value = getattr(self, name)
            _check(value >= 0 and math.isfinite(value), f"train.{name}", value, "at least 0")
        if self.stop_after is not None:
            seconds(self.stop_after)
        for name in ("peak_lr", "embedding_lr_scale", "clip_norm"):
            value = getattr(self, name)
            _check(value > 0 and math.isfinite(value), f"train.{name}", value, "a number above 0")
        _check(
            all(0 <= beta < 1 for beta in self.betas),
            "train.betas", list(self.betas), "two numbers from 0 to below 1",
        )  # fmt: skip


@dataclass(kw_only=True)
class RunConfig:
    """A whole run: `model` holds LocostConfig's fields but for the vocabulary, the dataset's.

    With a `baseline`, of them only the dropout, and `baseline_settings` what else it is told.
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
            self.model = {"dropout": self.model["dropout"]}
        elif self.baseline_settings:
            raise ValueError(
                f"model.baseline_settings is {self.baseline_settings} without a baseline; give "
                "--model.baseline NAME, or leave it out"
            )
        if self.train.early_stopping and not self.data.validation:
            raise ValueError(
                f"train.early_stopping is {self.train.early_stopping} but there is nothing to "
                "validate on; give --data.validation DIR, or --train.early_stopping 0"
            )

    def _check_baseline(self) -> None:
        """Raise ValueError for what only LOCOST has."""
        for name, value in self.model.items():
            if name != "dropout" and value != getattr(LocostConfig, name):
                raise ValueError(
                    f"model.{name} is {value}, a setting of LOCOST, with --model.baseline "
                    f"{self.baseline}, which has its own (--model.baseline_settings "
                    "'{d_model: 512}'); leave one of the two out"
                )
        for name, plain in (("compile", False), ("attention", "auto")):
            if getattr(self.train, name) != plain:
                raise ValueError(
                    f"train.{name} is {getattr(self.train, name)}, which is for LOCOST's blocks; "
                    f"with --model.baseline {self.baseline} leave it out"
                )
        if self.init_from and self.baseline_settings:
            raise ValueError(
                f"model.baseline_settings is {self.baseline_settings}, but --model.init_from "
                f"{self.init_from} has settings of its own; leave one of the two out"
            )

    def architecture(self, vocab_size: int) -> LocostConfig | BaselineConfig:
        """The model's configuration with the vocabulary of the dataset's tokenizer."""
        if self.baseline:
            return BaselineConfig(
                name=self.baseline,
                vocab_size=vocab_size,
                settings=self.baseline_settings,
                **self.model,
            )
        return LocostConfig(vocab_size=vocab_size, **self.model)

    def as_dict(self) -> dict[str, Any]:
        """The same nesting that recipes have, JSON types only."""
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
        """What `config.yaml` of the run folder holds."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def build_parser() -> ArgumentParser:
    """The command line of train.py; every field of the dataclasses is a flag."""
    parser = ArgumentParser(
        prog="train.py",
        description="Pre-train or fine-tune LOCOST. Without arguments: the pretrain_c4 recipe with "
        "ZeRO stage 1.",
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument(
        "--config", action=ActionConfigFile, help="recipe: YAML with any of the fields below"
    )
    parser.add_argument(
        "--deepspeed_config",
        type=str,
        default="ds_configs/zero1.json",
        help="DeepSpeed JSON; looked for here, then in the repository",
    )
    parser.add_argument(
        "--output",
        type=str,
        default="runs/pretrain_c4",
        help="run folder: checkpoints/, tensorboard/, metrics.jsonl, config.yaml; a run found "
        "there goes on from its last checkpoint",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="check configuration and data, then exit"
    )
    parser.add_argument("--local_rank", type=int, default=0, help="set by the deepspeed launcher")
    parser.add_class_arguments(LocostConfig, "model", skip={"vocab_size"}, instantiate=False)
    parser.add_argument(
        "--model.init_from",
        type=str | None,
        default=None,
        help="model folder, or checkpoint, whose weights the run starts from; none: random",
    )
    parser.add_argument(
        "--model.baseline",
        type=Name | None,
        default=None,
        help="train this system of transformers instead of LOCOST, at its base size unless "
        "init_from or baseline_settings say otherwise; of --model.* only dropout goes with it",
    )
    parser.add_argument(
        "--model.baseline_settings",
        type=dict[str, Any],
        default={},
        help="fields of the baseline's transformers configuration that differ from its base "
        "size's: '{d_model: 512, encoder_layers: 6}'",
    )
    parser.add_class_arguments(DataConfig, "data", instantiate=False)
    parser.add_class_arguments(TrainConfig, "train", instantiate=False)
    return parser


def parse(arguments: list[str]) -> tuple[RunConfig, bool]:
    """The run that the arguments ask for, and whether it is only to be checked.

    Raises ValueError naming the field, the value and the remedy.
    """
    given = "--config" in arguments
    if not given and not any(word.startswith("--config=") for word in arguments):
        arguments = ["--config", str(DEFAULT_RECIPE), *arguments]
    try:
        values = build_parser().parse_args(arguments).as_dict()
    except (ArgumentError, UnicodeDecodeError) as error:
        named = arguments[arguments.index("--config") + 1 :][:1] if given else []
        problem = ": ".join([*named, " ".join(str(error).split())])
        raise ValueError(f"{problem} (`train.py --help` explains every field)") from None
    for section in ("model", "data", "train"):
        if not isinstance(values[section], dict):
            raise ValueError(
                f"{section} is {values[section]!r}, expected its fields by name; mend the recipe "
                "(`train.py --print_config` shows one)"
            )
    model = values["model"]
    beside = {name: model.pop(name) for name in ("init_from", "baseline", "baseline_settings")}
    config = RunConfig(
        output=values["output"],
        deepspeed_config=values["deepspeed_config"],
        **beside,
        model=model,
        data=DataConfig(**values["data"]),
        train=TrainConfig(**values["train"]),
    )
    config.architecture(LocostConfig.vocab_size)  # its own checks name the impossible field
    return config, values["dry_run"]


def seconds(duration: str) -> int:
    """The seconds of a duration such as 19h30m, 45m or 1h0m30s; ValueError if it is none."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", duration)
    hours, minutes, rest = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + rest
    _check(total > 0, "train.stop_after", repr(duration), "a duration such as 19h30m, 45m or 90s")
    return total


def _check(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}, expected {expected}; set --{name}")
