"""The judge against a third-party server: `transformers serve`."""

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from finished_evaluation import finish

from pipeline.judge import main

NEEDED = ("transformers", "openai", "fastapi", "uvicorn", "accelerate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING}: requirements-dev.txt"),
]
REPLY = ("Relevance: 4\n", "Consistency: 5\n", "Fluency: 3\n", "Coherence: 2")


def make_chat_model(folder: Path) -> Path:
    """A Llama of eight tokens that recites a reply: each token's logits select the next one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = ["<unk>", "<s>", "</s>", "<reply>", *REPLY]
    size, end, start = len(vocabulary), 2, 3
    core = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(vocabulary)}, unk_token="<unk>")
    )
    core.pre_tokenizer, core.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<reply>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}<reply>"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=size,
        num_hidden_layers=1,
        num_attention_heads=1,
        bos_token_id=1,
        eos_token_id=end,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        for token in range(start, size):
            model.lm_head.weight[(token + 1) if token + 1 < size else end, token] = 10.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("models") / "reciter")


@pytest.fixture(scope="module")
def url(model, tmp_path_factory) -> Iterator[str]:
    """`transformers serve` on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)]
    with (
        log.open("w") as file,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=file, stderr=file
        ) as process,
    ):
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
        process.kill()


def test_the_judge_works_with_a_third_party_server(
    url, model, checkpoint, validation_folder, tmp_path, monkeypatch
):
    evaluation = finish(checkpoint, validation_folder, tmp_path / "out")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_MODEL", str(model))
    free = ("--price_input", "0", "--price_output", "0")
    main(["--evaluation", str(evaluation), *free, "--concurrency", "3"])
    (path,) = evaluation.glob("judge-*.json")
    result = json.loads(path.read_text())
    assert [score["value"] for score in result["scores"].values()] == [4, 5, 3, 2]
    assert result["examples"] == result["asked"] == 10
    assert result["tokens"]["written"] == 10 * (len(REPLY) + 1)
    # A truncated reply gives no rating.
    short = ("--request", '{"temperature": 0, "max_tokens": 2}')
    with pytest.raises(SystemExit):
        main(["--evaluation", str(evaluation), *free, *short])
    assert len(list(evaluation.glob("judge-*.json"))) == 1
