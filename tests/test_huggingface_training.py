"""The exported folder in transformers' Trainer, and the way back."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.convert import main
from pipeline.model import Locost, LocostConfig, load_model, save_model
from pipeline.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="needs requirements-extras.txt")
pytest.importorskip("accelerate", reason="needs requirements-dev.txt")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("exported_modules")]

STEPS, RATE = 3, 0.05
SOURCES = ("The river runs past an old mill.", "Soup.", "Herons fish until evening.") * 2
TARGETS = ("The mill.", "Old herons.", "Bread and soup.") * 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer_path):
    """Our model folder and the one exported from it."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "state_dim": 4, "d_ff": 32, "encoder_layers": 2, "decoder_layers": 2}
    vocabulary = Tokenizer(tokenizer_path).vocab_size
    config = LocostConfig(vocab_size=vocabulary, num_heads=2, head_dim=8, **sizes)
    save_model(Locost(config), folder / "ours", tokenizer=tokenizer_path)
    arguments = ["--output", str(folder / "theirs"), "--format", "huggingface"]
    assert main(["export", str(folder / "ours"), *arguments]) == 0
    return folder / "ours", folder / "theirs"


def train(folder: Path, output: Path, **options):
    """Losses and gradient norms of a run of Trainer, and its model; a batch of two a step."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    pairs = zip(tokenizer(list(SOURCES))["input_ids"], tokenizer(list(TARGETS))["input_ids"])  # noqa: B905
    samples = [{"input_ids": source, "labels": target} for source, target in pairs]
    trainer = transformers.Seq2SeqTrainer(
        model=model,
        args=transformers.Seq2SeqTrainingArguments(
            output_dir=str(output), max_steps=STEPS, per_device_train_batch_size=2,
            learning_rate=RATE, lr_scheduler_type="constant", optim="sgd", max_grad_norm=1e9,
            logging_steps=1, save_steps=STEPS, report_to=[], use_cpu=True, disable_tqdm=True,
            train_sampling_strategy="sequential", **options,
        ),
        train_dataset=samples,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return [line["loss"] for line in lines], model


def plain(folder: Path, smoothing: float = 0.0):
    """The same with our model and a loop."""
    model, tokenizer = load_model(folder).train(), Tokenizer(folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(STEPS):
        rows = slice(2 * step, 2 * step + 2)
        source, target = (
            torch.nn.utils.rnn.pad_sequence(
                [torch.tensor([*tokenizer.encode(text), tokenizer.eos_id]) for text in texts[rows]],
                batch_first=True,
                padding_value=filler,
            )
            for texts, filler in ((SOURCES, 0), (TARGETS, -100))
        )
        logits = model(source, (source != 0).long(), target).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize(
    ("options", "smoothing"),
    [
        ({}, 0.0),
        ({"gradient_checkpointing": True}, 0.0),
        ({"gradient_checkpointing": True, "label_smoothing_factor": 0.1}, 0.1),
    ],
)
def test_training_is_ours_and_comes_back(folders, tmp_path, tokenizer_path, options, smoothing):
    losses, theirs = train(folders[1], tmp_path / "run", **options)
    expected, ours = plain(folders[0], smoothing)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert expected[0] != pytest.approx(expected[-1], rel=1e-2)
    recompute = [block.recompute for block in theirs.locost._blocks()]
    assert recompute == [bool(options)] * 4
    assert theirs.gradient_checkpointing == bool(options)

    saved = tmp_path / "run" / f"checkpoint-{STEPS}"
    arguments = [
        "--output",
        str(tmp_path / "back"),
        "--tokenizer",
        str(folders[1] / "spiece.model"),
    ]
    assert main(["import", str(saved), *arguments]) == 0
    back = load_model(tmp_path / "back")
    assert back.config == ours.config
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, theirs.locost.state_dict()[name]), name
        assert torch.allclose(tensor, ours.state_dict()[name], rtol=1e-4, atol=1e-6), name
    assert (tmp_path / "back" / "tokenizer.model").read_bytes() == tokenizer_path.read_bytes()


def test_checkpointing_keeps_fewer_activations(folders):
    """Not only a flag: what the backward pass keeps is less."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folders[1], trust_remote_code=True)
    ids = torch.randint(3, 100, (2, 64))
    kept = []
    for enable in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        enable()
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, sizes=sizes: sizes.append(x.numel()) or x, lambda x: x
        ):
            model.train()(input_ids=ids, labels=ids[:, :8])
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2
    with pytest.raises(ValueError, match="every block recomputes"):
        model._set_gradient_checkpointing(True, every_n_layers=2)


def test_smoothing_without_the_collators_inputs_says_what_is_missing(folders):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folders[1], trust_remote_code=True)
    with pytest.raises(ValueError, match=r"DataCollatorForSeq2Seq\(tokenizer, model=model\)"):
        model(input_ids=torch.tensor([[5, 1]]))


def test_what_save_pretrained_wrote_comes_back_and_what_does_not_fit_is_one_line(
    folders, tmp_path, capsys
):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folders[1], trust_remote_code=True)
    saved = tmp_path / "saved"
    model.bfloat16().save_pretrained(saved)
    assert main(["import", str(saved), "--output", str(tmp_path / "back")]) == 0
    assert "spiece.model of the folder it was trained from" in capsys.readouterr().out
    assert load_model(tmp_path / "back").config == load_model(folders[0]).config
    weights = load_file(saved / "model.safetensors")
    name = "encoder.norm.weight"
    found = load_model(tmp_path / "back").state_dict()[name]
    assert torch.equal(found, weights[f"locost.{name}"].float())

    settings = json.loads((saved / "config.json").read_text())

    def refused(changes: dict, *more: str) -> str:
        changed = {name: value for name, value in {**settings, **changes}.items() if value != ""}
        (saved / "config.json").write_text(json.dumps(changed))
        with pytest.raises(SystemExit, match="2"):
            main(["import", str(saved), "--output", str(tmp_path / "no"), *more])
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1
        return error

    assert "its config.json lacks d_ff; add them" in refused({"d_ff": ""})
    assert "its config.json: num_heads=0 is impossible" in refused({"num_heads": 0})
    assert "not the weights of this configuration" in refused({"d_ff": 33})
    assert "--published_convolution is for published" in refused({}, "--published_convolution")
    assert not (tmp_path / "no").exists()
