"""The whole model: sizes, padding, precision, dropout, checks of its input."""

import pytest
import torch
from locost_golden import error, golden, random_model, tiny_model

from pipeline.model import Locost, LocostConfig, ssm_parameter_names
from pipeline.model.locost import shift_right

IDS = torch.randint(2, 40, (2, 9), generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[5, 6, 1], [7, 1, -100]])


def parameters(**changes):
    with torch.device("meta"):
        return sum(p.numel() for p in Locost(LocostConfig(**changes)).parameters())


def test_the_papers_size():
    assert parameters() == 234_724_224
    assert parameters(tie_embeddings=False) == 259_377_024


def test_tied_head_is_the_embedding():
    assert random_model().head is None
    assert random_model(tie_embeddings=False).head.weight.shape == (40, 16)


def test_no_complex_parameter_or_buffer():
    model = random_model()
    assert all(tensor.is_floating_point() for tensor in model.state_dict().values())


def test_state_space_parameters_by_name():
    model = random_model()
    names = ssm_parameter_names(model)
    assert len(names) == 2 * 6
    assert names <= {name for name, _ in model.named_parameters()}
    assert "encoder.blocks.1.ssm.log_dt" in names


@pytest.mark.parametrize("row", [0, 1, 2])
def test_padded_and_unpadded_agree(row):
    model = tiny_model(torch.float64)
    length = int(golden["attention_mask"][row].sum())
    labels = golden["labels"][row : row + 1]
    ids = golden["input_ids"][row : row + 1, :length]
    alone = model(ids, None, labels)
    batch = model(golden["input_ids"], golden["attention_mask"], golden["labels"])
    assert error(batch.logits[row : row + 1], alone.logits) < 1e-13
    assert error(batch.encoder_states[row : row + 1, :length], alone.encoder_states) < 1e-13
    assert torch.equal(model(ids, torch.ones_like(ids), labels).logits, alone.logits)


@pytest.mark.parametrize("length", [1, 2, 3, 97])
def test_any_length(length):
    ids = torch.randint(2, 40, (1, length))
    output = random_model()(ids, labels=LABELS[:1])
    assert output.encoder_states.shape == (1, length, 16)
    assert output.loss.isfinite()


def test_without_labels_only_the_encoder_runs():
    output = random_model()(IDS)
    assert output.loss is None
    assert output.logits is None


def test_decoder_input_is_shifted_labels():
    shifted = shift_right(LocostConfig(), torch.tensor([[5, 6, 1, -100, -100]]))
    assert shifted.tolist() == [[0, 5, 6, 1, 0]]


def test_bfloat16_autocast_is_close_to_float32():
    """Matmuls round to 8 bits; the residual stream, the state-space part and the loss do not."""
    model = tiny_model()
    inputs = (golden["input_ids"], golden["attention_mask"], golden["labels"])
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*inputs)
    assert output.loss.dtype == output.encoder_states.dtype == torch.float32
    assert error(output.loss, golden["f64.loss"]) < 5e-3
    assert error(output.encoder_states, golden["f64.encoder_last_hidden_state"]) < 5e-2
    output.loss.backward()
    assert all(
        p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters()
    )


def test_float64_stays_float64_to_the_loss():
    output = random_model().double()(IDS, labels=LABELS)
    assert {output.loss.dtype, output.logits.dtype} == {torch.float64}


def test_dropout_acts_in_training_only():
    model = random_model(dropout=0.3)
    assert torch.equal(model(IDS).encoder_states, model(IDS).encoder_states)
    model.train()
    assert not torch.equal(model(IDS).encoder_states, model(IDS).encoder_states)
    assert (model(IDS).encoder_states == 0).float().mean().item() == pytest.approx(0.3, abs=0.1)
    before = torch.get_rng_state()
    model.generate(IDS, max_new_tokens=3)
    assert model.training
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": IDS[:, :0]}, "input_ids: shape"),
        ({"input_ids": IDS[0]}, "input_ids: shape"),
        ({"input_ids": IDS + 40}, "input_ids: an id is outside"),
        ({"input_ids": -IDS}, "input_ids: an id is outside"),
        ({"labels": LABELS + 40}, "labels: an id is outside"),
        ({"labels": LABELS[:1]}, "labels: 1 rows"),
        ({"labels": LABELS[:, :0]}, "labels: shape"),
        ({"labels": torch.full((2, 3), -100)}, "labels: all are -100"),
        ({"attention_mask": torch.ones(2, 8)}, "attention_mask: shape"),
        ({"attention_mask": torch.tensor([[1] * 9, [0] * 9])}, "attention_mask: a row is all"),
    ],
)
def test_impossible_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        random_model()(**{"input_ids": IDS, "labels": LABELS, **arguments})
