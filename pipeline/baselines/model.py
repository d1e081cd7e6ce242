"""A baseline behind Locost's interface, and the folder of it that transformers reads too.

Shapes: B batch, L source and T target positions, V vocabulary.
"""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.baselines.classes import classes, transformers
from pipeline.baselines.systems import SYSTEMS, BaselineConfig, name_of
from pipeline.model.folder import CONFIG, FORMAT, WEIGHTS, replace_file
from pipeline.model.generation import DecodingStrategy
from pipeline.model.locost import LocostOutput, target_loss

WEIGHT_FILES = (WEIGHTS, "pytorch_model.bin")
"""Of a folder, the first that is there: ours have safetensors, some published ones do not."""


class Baseline(nn.Module):
    """One of SYSTEMS, `network`, of random weights unless one that has others is given.

    Raises ValueError naming a setting that is unknown or impossible.
    """

    def __init__(self, config: BaselineConfig, network: Any = None) -> None:
        super().__init__()
        self.config = config
        self.network = _random(config) if network is None else network
        self.network.generation_config = transformers().GenerationConfig(
            pad_token_id=config.pad_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.start_id,
        )  # whatever a folder asks for: `generate` is told all it does
        vars(self.network.config).pop("auto_map", None)  # code, which is not run and not copied

    @property
    def encoder(self) -> nn.Module:
        """Reads the source."""
        return self.network.get_encoder()

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding, which the decoder shares."""
        return self.network.get_input_embeddings()

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The longest source and target in tokens; None: any length."""
        settings = self.network.config
        source, target = (name and getattr(settings, name) for name in self.config.system.positions)
        if self.config.name == "led":  # sources are padded to whole windows
            source -= source % max(settings.attention_window)
        if self.config.name == "lsg":  # and to whole blocks
            source -= source % settings.block_size
        return source or None, target or None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        loss_reduction: Literal["mean", "sum"] = "mean",
    ) -> LocostOutput:
        """As Locost.forward: source (B, L), its mask (B, L), labels (B, T) -> loss, logits, states.

        Raises ValueError where source or target is longer than the system's positions.
        """
        source = self._source(input_ids, attention_mask)
        if labels is None:
            states = self.encoder(**source)[0]
            return LocostOutput(None, None, states)
        self.check_length(labels.shape[1], target=True)
        output = self.network(
            **source,
            decoder_input_ids=self.network.prepare_decoder_input_ids_from_labels(labels),
            use_cache=False,
        )
        loss = target_loss(output.logits, labels, loss_reduction)
        return LocostOutput(loss, output.logits, output.encoder_last_hidden_state)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        started: object = None,
        **strategy: Any,
    ) -> Tensor:
        """As Locost.generate, by transformers: (B, L) -> (B, 1 + T), start token first.

        `started` is never told: there is no such state. Raises ValueError naming an option that is
        impossible, or that baselines do not have.
        """
        chosen = DecodingStrategy(**strategy)
        if chosen.memory_budget is not None:
            raise ValueError("memory_budget bounds LOCOST's cache; leave it out for a baseline")
        self.check_length(chosen.max_new_tokens, target=True)
        samples = chosen.top_p is not None
        options: dict[str, Any] = {
            "max_new_tokens": chosen.max_new_tokens,
            "min_new_tokens": chosen.min_new_tokens,
            "num_beams": chosen.num_beams,
            "no_repeat_ngram_size": chosen.no_repeat_ngram_size,
            "do_sample": samples,
        }
        if samples:
            options |= {"top_p": chosen.top_p, "temperature": chosen.temperature, "top_k": 0}
        if chosen.num_beams > 1:
            options |= {"length_penalty": chosen.length_penalty, "early_stopping": "never"}
        was_training = self.training
        self.eval()
        devices = [input_ids.device] if input_ids.is_cuda else []
        try:
            with torch.random.fork_rng(devices):
                torch.manual_seed(chosen.seed)
                return self.network.generate(**self._source(input_ids, attention_mask), **options)
        finally:
            self.train(was_training)

    def recompute_activations(self, recompute: bool = True) -> None:
        """As Locost's: whether layers keep only their inputs for the backward pass."""
        for module in self.network.modules():  # what every version of transformers looks at
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = recompute
                module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)

    def check_length(self, length: int, target: bool = False) -> None:
        """Raise ValueError where a source (or target) of that length has no positions."""
        limit, setting = self.limits[target], self.config.system.positions[target]
        if limit is not None and length > limit:
            side = "target" if target else "source"
            cut = "data.target_length or max_new_tokens" if target else "source_length"
            raise ValueError(
                f"{self.config.name} has positions for {side}s of {limit} tokens, this one has "
                f"{length}; set {cut} to {limit}, or train one of random weights with "
                f"--model.baseline_settings '{{{setting}: {length}}}'"
            )

    def _source(self, input_ids: Tensor, attention_mask: Tensor | None) -> dict[str, Tensor]:
        """The encoder's arguments."""
        self.check_length(input_ids.shape[1])
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        source = {"input_ids": input_ids, "attention_mask": attention_mask.long()}
        if self.config.name == "led":  # as its authors summarise: all look at the first token
            first = torch.zeros_like(input_ids)
            first[:, 0] = 1
            source["global_attention_mask"] = first
        if self.config.name == "bigbird":
            _choose_attention(self.encoder, input_ids.shape[1])
        return source


def save_baseline(model: Baseline, folder: str | Path, tokenizer: str | Path | None = None) -> None:
    """Write model and tokenizer into a folder that transformers reads, config.json last."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        copied = Path(tokenizer)
        replace_file(folder / copied.name, lambda path: shutil.copyfile(copied, path))
    state = model.network.state_dict()
    once = {name for name, _ in (*model.network.named_parameters(), *model.network.named_buffers())}
    weights = {name: state[name].contiguous() for name in state if name in once}
    replace_file(folder / WEIGHTS, lambda path: save_file(weights, path, FORMAT))
    text = model.network.config.to_json_string(use_diff=False)
    replace_file(folder / CONFIG, lambda path: path.write_text(text))


def load_baseline(folder: str | Path, dropout: float | None = None) -> Baseline:
    """The model of a local folder, one of ours or a published one, on the CPU, in fp32.

    `dropout` in place of the folder's own. Nothing of the folder is executed. Raises ValueError
    where weights are missing, not finite, or of another shape.
    """
    folder = Path(folder)
    config, settings = _read_config(folder)
    if dropout is not None:
        config = replace(config, dropout=dropout)
        setattr(settings, config.system.dropout, dropout)
    try:
        network, report = classes(config.name)[1].from_pretrained(
            folder,
            config=settings,
            torch_dtype=torch.float32,  # by the name that all versions know
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
        )
    except (OSError, RuntimeError, SafetensorError, UnpicklingError) as error:
        first, *_ = str(error).splitlines()
        raise ValueError(f"{folder}: its weights cannot be read: {first}") from None
    faults = [f"missing {name}" for name in sorted(report["missing_keys"])]
    faults += [
        f"{name} is {tuple(found)}, expected {tuple(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    faults += [
        f"NaN or infinity in {name}"
        for name, tensor in network.state_dict().items()
        if not tensor.isfinite().all()
    ]
    if faults:
        more = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise ValueError(
            f"{folder}: not the weights of its config.json: {'; '.join(faults[:8])}{more}"
        )
    return Baseline(config, network).eval()


def check_baseline(folder: str | Path) -> BaselineConfig:
    """The configuration of a baseline's folder, whose weights are not read.

    Raises ValueError where there is none that can be used.
    """
    folder = Path(folder)
    config, _ = _read_config(folder)
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise ValueError(f"{folder}: no {' or '.join(WEIGHT_FILES)}; give a whole model folder")
    return config


def _random(config: BaselineConfig) -> Any:
    """The network of these sizes, of random weights."""
    system = config.system
    settings_class, network_class = classes(config.name)
    if unknown := config.settings.keys() - settings_class().to_dict().keys():
        raise ValueError(
            f"model.baseline_settings: {config.name} has no {', '.join(sorted(unknown))}; give "
            f"fields of transformers' {system.model_type} configuration, such as "
            f"{', '.join(list(system.base)[:3])}"
        )
    values = {
        **system.base,
        system.dropout: config.dropout,
        **config.settings,
        "vocab_size": config.vocab_size,
        "pad_token_id": config.pad_id,
        "eos_token_id": config.eos_id,
        "bos_token_id": config.start_id,
        "decoder_start_token_id": config.start_id,
        "forced_eos_token_id": None,
    }
    try:
        settings = settings_class(**values)
        for name in config.settings if config.name == "lsg" else ():  # it may take another value
            if getattr(settings, name) != values[name]:
                raise ValueError(f"{name} cannot be {values[name]!r}")
        return network_class(settings)
    except Exception as error:  # its checks raise errors of many kinds
        raise ValueError(
            f"model.baseline_settings {config.settings} are impossible for {config.name}: {error}"
        ) from None


def _read_config(folder: Path) -> tuple[BaselineConfig, Any]:
    """What a folder's config.json says, as ours and as transformers'."""
    try:
        values = json.loads((folder / CONFIG).read_text())
        name = name_of(values)
        if name is None:
            raise ValueError(f"model_type is none of {', '.join(SYSTEMS)}")
        settings = classes(name)[0].from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, AssertionError) as error:  # LSG's asserts what fits together
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    start = settings.decoder_start_token_id
    return BaselineConfig(
        name=name,
        vocab_size=settings.vocab_size,
        dropout=getattr(settings, SYSTEMS[name].dropout),
        pad_id=settings.pad_token_id,
        eos_id=settings.eos_token_id,
        start_id=settings.pad_token_id if start is None else start,
    ), settings


def _choose_attention(encoder: Any, length: int) -> None:
    """Block-sparse attention wherever the source is long enough for it.

    By itself BigBird's encoder goes over to full attention at its first short source, for good.
    The layers it makes to go over take the weights of those before; made without storage, they
    draw no random numbers, on which dropout and so a resumed run would depend.
    """
    if encoder.config.attention_type != "block_sparse":
        return
    fewest = (5 + 2 * encoder.config.num_random_blocks) * encoder.config.block_size
    with torch.device("meta"):
        encoder.set_attention_type("block_sparse" if length > fewest else "original_full")
