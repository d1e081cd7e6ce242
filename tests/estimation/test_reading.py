"""What a document's reading takes: sizes by hand, the choice, and the peak of a real process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.estimation.reading import OVERHEAD, Document
from pipeline.model import Locost, LocostConfig
from pipeline.model.generation import DecodingStrategy

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
MEASURE = """
import json, sys
sys.path[0] = sys.argv[1]
import torch
from pipeline.benchmarking.meter import Peak, keep_no_freed_arrays
from pipeline.estimation.reading import Document
from pipeline.model import Locost, LocostConfig
from pipeline.model.generation import DecodingStrategy

torch.manual_seed(0)
config = LocostConfig(**json.loads(sys.argv[2]))
tokens, bf16, cached = 60_000, sys.argv[3] == "bf16", sys.argv[4] == "cached"
strategy = DecodingStrategy(max_new_tokens=3)
model = Locost(config).eval()
document = Document(config, tokens, strategy, 2 if bf16 else 4, on_gpu=False)
way = document.way(0, 2**60, 2**60 if cached else 0)
assert way.cached == cached
ids = torch.randint(3, config.vocab_size, (1, tokens))
model.encoder.use_token_blocks(way.token_block)
keep_no_freed_arrays()
peak = Peak(torch.device("cpu"))
with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
    model.generate(ids, max_new_tokens=3, memory_budget=way.source if cached else 0)
print(json.dumps({"measured": peak.bytes(), "expected": way.peak, "resets": peak.resets}))
"""


def base(tokens, product_bytes=2, **strategy):
    return Document(LocostConfig(), tokens, DecodingStrategy(**strategy), product_bytes, False)


def test_the_source_is_what_the_decoder_holds():
    model = Locost(LocostConfig(d_model=8, vocab_size=9, d_ff=8, state_dim=2, num_heads=3,
                                head_dim=5, encoder_layers=1, decoder_layers=4))  # fmt: skip
    document = Document(model.config, 77, DecodingStrategy(), 4, False)
    ids = torch.ones(1, 77, dtype=torch.long)
    for cached in (True, False):
        way = document.way(0, 2**60, 2**60 if cached else 0)
        states = []
        model.generate(
            ids, max_new_tokens=1, memory_budget=way.source * cached, started=states.append
        )
        first = states[0].source[0]
        held = 4 * 2 * first.keys.nbytes if cached else first.states.nbytes
        assert (way.cached, way.source) == (cached, held)


def test_the_fastest_way_that_fits_is_taken():
    document = base(600_000)
    fast = document.way(0, 2**60, 2**60)
    assert (fast.cached, fast.token_block) == (True, 16384)
    assert fast.source == 600_000 * 12 * 2 * 768 * 2  # 22 GB: layers, keys and values, bf16
    assert document.way(0, fast.peak, fast.source) == fast
    small = document.way(0, fast.peak - 1, fast.source)
    assert (small.cached, small.token_block) == (False, 16384)
    assert document.way(0, fast.peak, fast.source - 1) == small
    smaller = document.way(0, small.peak - 1, 2**60)
    assert (smaller.cached, smaller.token_block) == (False, 4096)
    least = document.way(0, smaller.peak - 1, 2**60)
    assert (least.cached, least.token_block) == (False, 1024)
    assert document.way(5 * GIB, least.peak + 5 * GIB, 2**60) == least
    with pytest.raises(ValueError, match=r"600,000 tokens need .* 5.00 of them held already"):
        document.way(5 * GIB, least.peak + 5 * GIB - 1, 2**60)


def test_what_is_needed_grows_with_what_is_asked():
    peak = base(50_000).way(0, 2**60, 2**60).peak
    assert base(60_000).way(0, 2**60, 2**60).peak > peak
    assert base(50_000, product_bytes=4).way(0, 2**60, 2**60).peak > peak
    assert base(50_000, num_beams=64).way(0, 2**60, 2**60).peak > peak


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("form", ["cached", "absorbed"])
def test_a_process_holds_no_more_and_not_much_less(precision, form):
    model = {
        "d_model": 192, "d_ff": 512, "state_dim": 16, "num_heads": 3, "vocab_size": 1000,
        "encoder_layers": 2, "decoder_layers": 6 if form == "cached" else 2,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(ROOT), json.dumps(model), precision, form],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    if not found["resets"]:
        pytest.skip("this system does not set a process's high-water mark back")
    assert 0.6 * (found["expected"] - OVERHEAD) < found["measured"] <= found["expected"]
