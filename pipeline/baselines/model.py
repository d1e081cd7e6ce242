"""A baseline with the interface of Locost, and its model folder, which transformers also reads.

Shapes: B batch, L source and T target positions, V vocabulary.
"""

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

from pipeline.baselines.attention import attention_kernels, use_attention
from pipeline.baselines.systems import SYSTEMS, AttentionChoice, BaselineConfig, name_of
from pipeline.baselines.transformers_classes import classes, transformers
from pipeline.model.folder import CONFIG, FORMAT, WEIGHTS, read_header, read_settings, replace_file
from pipeline.model.generation import DecodingStrategy, nucleus
from pipeline.model.locost import LocostOutput, target_loss
from pipeline.model.sampling import Nucleus

WEIGHT_FILES = (WEIGHTS, "pytorch_model.bin")
"""The first that exists is read: ours have safetensors, some published ones do not."""


class Baseline(nn.Module):
    """One of SYSTEMS: the given `network`, or one with random weights.

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
        )  # a folder's own is ignored: `generate` gets all options
        vars(self.network.config).pop("auto_map", None)  # remote code is neither run nor copied
        use_attention(self.network, config.attention)

    @property
    def encoder(self) -> nn.Module:
        """The encoder."""
        return self.network.get_encoder()

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding, which the decoder shares."""
        return self.network.get_input_embeddings()

    @property
    def limits(self) -> tuple[int | None, int | None]:
        """The maximum source and target length in tokens; None: no limit."""
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
        loss_only: bool = False,
        check: bool = True,
    ) -> LocostOutput:
        """As Locost.forward: source (B, L), its mask (B, L), labels (B, T) -> loss, logits, states.

        The network computes all logits, `loss_only` or not, and its lengths are always checked.
        Raises ValueError if source or target is longer than the system's positions.
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

        Sampling is ours, whose draws do not depend on the batch.
        `started` is never called: there is no such state. Raises ValueError naming an impossible
        option, or one that baselines lack.
        """
        chosen = DecodingStrategy(**strategy)
        if chosen.memory_budget is not None:
            raise ValueError("memory_budget bounds LOCOST's cache; leave it out for a baseline")
        self.check_length(chosen.max_new_tokens, target=True)
        options: dict[str, Any] = {
            "max_new_tokens": chosen.max_new_tokens,
            "min_new_tokens": chosen.min_new_tokens,
            "num_beams": chosen.num_beams,
            "no_repeat_ngram_size": chosen.no_repeat_ngram_size,
            "do_sample": False,
        }
        if (sampling := nucleus(chosen, input_ids, attention_mask)) is not None:
            options["logits_processor"] = [SampledTokens(sampling)]
        if chosen.num_beams > 1:
            options["length_penalty"] = chosen.length_penalty
            options["early_stopping"] = chosen.early_stopping
        was_training = self.training
        self.eval()
        try:
            return self.network.generate(**self._source(input_ids, attention_mask), **options)
        finally:
            self.train(was_training)

    def recompute_activations(self, recompute: bool = True) -> None:
        """Switch gradient checkpointing, as in Locost: layers keep only their inputs."""
        for module in self.network.modules():  # the attribute that all versions of transformers use
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = recompute
                module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)

    def attention_kernels(self) -> dict[str, str]:
        """The attention kernels in use, in words, by part: encoder, decoder, cross."""
        return attention_kernels(self.network)

    def check_length(self, length: int, target: bool = False) -> None:
        """Raise ValueError if a source (or target) of that length exceeds the positions."""
        limit, setting = self.limits[target], self.config.system.positions[target]
        if limit is not None and length > limit:
            side = "target" if target else "source"
            cut = "data.target_length or max_new_tokens" if target else "source_length"
            raise ValueError(
                f"{self.config.name} has positions for {side}s of {limit} tokens, this one has "
                f"{length}; set {cut} to {limit}, or train from random weights with "
                f"--model.baseline_settings '{{{setting}: {length}}}'"
            )

    def _source(self, input_ids: Tensor, attention_mask: Tensor | None) -> dict[str, Tensor]:
        """The encoder's arguments."""
        self.check_length(input_ids.shape[1])
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        source = {"input_ids": input_ids, "attention_mask": attention_mask.long()}
        if (
            self.config.name == "led"
        ):  # as in its authors' summarisation: global attention on the first token
            first = torch.zeros_like(input_ids)
            first[:, 0] = 1
            source["global_attention_mask"] = first
        if self.config.name == "bigbird":
            _choose_attention(self.encoder, input_ids.shape[1])
        return source


class SampledTokens:
    """A logits processor of transformers, the last one, that leaves each row its sampled token."""

    def __init__(self, sampling: Nucleus) -> None:
        self.sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Logits (B, V) after the start token and T new ones, (B, 1 + T) -> (B, V)."""
        tokens = self.sampling(scores, input_ids.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, tokens[:, None], 0)


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


def load_baseline(
    folder: str | Path, dropout: float | None = None, attention: AttentionChoice = "fast"
) -> Baseline:
    """The model of a local folder, one of ours or a published one, on the CPU, in fp32.

    `dropout` overrides the folder's own. `attention`: as in BaselineConfig. No code of the
    folder is run. Raises ValueError if weights are missing, not finite, or of another shape.
    """
    folder = Path(folder)
    config, settings = _read_config(folder)
    config = replace(config, attention=attention)
    if dropout is not None:
        config = replace(config, dropout=dropout)
        setattr(settings, config.system.dropout, dropout)
    try:
        network, report = classes(config.name)[1].from_pretrained(
            folder,
            config=settings,
            torch_dtype=torch.float32,  # the name in all versions
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
        )
        others = read_header(folder / WEIGHTS)[1] if (folder / WEIGHTS).is_file() else []
    except (OSError, RuntimeError, SafetensorError, UnpicklingError) as error:
        first, *_ = str(error).splitlines()
        raise ValueError(f"{folder}: its weights cannot be read: {first}") from None
    faults = [f"missing {name}" for name in sorted(report["missing_keys"])]
    faults += [
        f"{name} is {tuple(found)}, expected {tuple(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    named = dict(network.named_parameters())  # buffers may be of other types
    faults += [f"{name} is not floating point" for name in others if name in named]
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
    """The configuration of a baseline's folder, without reading its weights.

    Raises ValueError if there is no valid one.
    """
    folder = Path(folder)
    config, _ = _read_config(folder)
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise ValueError(f"{folder}: no {' or '.join(WEIGHT_FILES)}; give a complete model folder")
    return config


def _random(config: BaselineConfig) -> Any:
    """The network of these sizes, with random weights."""
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
        for name in config.settings if config.name == "lsg" else ():  # may change a value
            if getattr(settings, name) != values[name]:
                raise ValueError(f"{name} cannot be {values[name]!r}")
        return network_class(settings)
    except Exception as error:  # its checks raise many types of errors
        raise ValueError(
            f"model.baseline_settings {config.settings} are impossible for {config.name}: {error}"
        ) from None


def _read_config(folder: Path) -> tuple[BaselineConfig, Any]:
    """A folder's config.json, as our configuration and as transformers'."""
    try:
        values = read_settings(folder / CONFIG)
    except OSError as error:
        raise ValueError(f"{folder / CONFIG}: {error.strerror}") from None
    try:
        name = name_of(values)
        if name is None:
            raise ValueError(f"model_type is none of {', '.join(SYSTEMS)}")
        settings = classes(name)[0].from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, AssertionError) as error:  # LSG checks by assertions
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
    """Block-sparse attention whenever the source is long enough for it.

    Left alone, BigBird's encoder switches to full attention at its first short source, for good.
    The layers it creates to switch take over the weights of the old ones; created on the meta
    device, they draw no random numbers, which would change dropout and so a resumed run.
    """
    if encoder.config.attention_type != "block_sparse":
        return
    fewest = (5 + 2 * encoder.config.num_random_blocks) * encoder.config.block_size
    with torch.device("meta"):
        encoder.set_attention_type("block_sparse" if length > fewest else "original_full")
