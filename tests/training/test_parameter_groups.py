"""The optimizer's groups: every parameter once, rates and decay where they belong."""

from pipeline.config import TrainConfig
from pipeline.model import Locost, LocostConfig
from pipeline.training.optimizer import parameter_groups


def test_every_parameter_stands_in_one_group():
    model = Locost(
        LocostConfig(
            vocab_size=40, d_model=8, state_dim=2, d_ff=16, encoder_layers=1, decoder_layers=1,
            num_heads=2, head_dim=4,
        )
    )  # fmt: skip
    groups = parameter_groups(model, TrainConfig(weight_decay=0.1, embedding_lr_scale=10.0))
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(map(id, model.parameters()))
    assert all(group["params"] for group in groups)
    embedding = [group for group in groups if group["lr_scale"] == 10.0]
    assert [id(p) for group in embedding for p in group["params"]] == [id(model.embedding.weight)]
    undecayed = [group for group in groups if group["weight_decay"] == 0.0]
    kernel = model.encoder.blocks[0].ssm
    assert {id(p) for group in undecayed for p in group["params"]} == {
        id(getattr(kernel, name)) for name in ("inv_A_real", "A_imag", "log_dt", "B", "C", "D")
    }
