"""Every variant of the Triton kernels compiled to machine code for an H100, which needs no GPU."""

import inspect
import re
import subprocess

import pytest

pytest.importorskip("triton", reason="needs requirements-dev.txt, on Linux")
pytestmark = pytest.mark.slow
H100 = 90
SHARED_MEMORY = 227 << 10
"""Bytes of a multiprocessor."""
SPILLED = {"build": 0, "correlate": 320, "differentiate": 0}
"""Bytes of registers that a thread may move to local memory."""
WHOLE_NUMBERS = ("channels", "modes", "lags", "size", "reverse_end")
VARIANTS = [
    {"SETS": sets, "DIRECTIONS": directions, "HOLD": hold, "ROWS": 64}
    for sets, directions in ((1, 1), (1, 2), (2, 2))
    for hold in (True, False)
]
CASES = [(name, variant) for name in ("build", "differentiate") for variant in VARIANTS]
CASES += [("correlate", {"DIRECTIONS": directions, "ROWS": 64}) for directions in (1, 2)]


@pytest.fixture(autouse=True)
def not_interpreted_nor_cached(monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compile_kernel(kernel, constants, warps):
    """For an H100, as triton_operators.py launches it."""
    import triton
    from triton.backends.compiler import GPUTarget

    names = inspect.signature(kernel.fn).parameters
    constants = {name: value for name, value in constants.items() if name in names}
    types = {name: "i32" if name in WHOLE_NUMBERS else "*fp32" for name in names}
    source = triton.compiler.ASTSource(
        kernel, types | dict.fromkeys(constants, "constexpr"), constants
    )
    options = {"num_warps": warps, "num_stages": 1}
    return triton.compile(source, target=GPUTarget("cuda", H100, 32), options=options)


def spilled_bytes(ptx, path):
    """Of a thread, by NVIDIA's assembler, which comes with Triton."""
    from triton import knobs

    path.write_text(ptx)
    command = [knobs.nvidia.ptxas.path, "-v", f"-arch=sm_{H100}a", str(path), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return [int(x) for x in re.findall(r"(\d+) bytes spill stores", said)]


@pytest.mark.parametrize(("name", "constants"), CASES, ids=str)
def test_it_compiles_for_an_h100_and_fits(name, constants, tmp_path):
    from pipeline.model import triton_kernels as kernels

    found = compile_kernel(getattr(kernels, name), constants, kernels.WARPS)
    assert len(found.asm["cubin"]) > 1000
    ptx = found.asm["ptx"]
    assert found.metadata.shared <= SHARED_MEMORY / 4
    (spilled,) = spilled_bytes(ptx, tmp_path / "kernel.ptx")
    assert spilled <= SPILLED[name]
    assert not re.search(r"\b(atom|red)\.", ptx)  # no sum in an order of its own
    if name != "differentiate":
        assert re.search(r"wgmma\.mma_async\S+tf32\.tf32", ptx)  # on tensor cores
