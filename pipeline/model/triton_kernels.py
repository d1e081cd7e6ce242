"""The two-sided kernel of a state-space layer in one Triton kernel, and its gradients in two.

Shapes: H channels, N complex modes, D directions, E sets of eigenvalues, as in vandermonde.py; F
size of the circular kernel (long_conv.py). A program works on one channel. Lags come in tiles of
ROWS x COLUMNS, l = row + column with rows a multiple of COLUMNS: exp(z l) = exp(z row) exp(z
column), so that both the kernel and the sums of its gradient are small matrix products.

Precision: angles are taken modulo half a turn in float64 and then rounded, so exponentials have
float32's rounding at any lag; products are of three tf32 products each, which keep it on tensor
cores; what happens once a mode is in float64. No program writes where another does, and every sum
has a fixed order: results are the same bit for bit.

Sizes, for an H100: tiles of 64 x 64 lags and blocks of 16 modes take 229 of 255 registers a thread
(with separate eigenvalues all, and 56 bytes of local memory; blocks of 32 modes would spill up to 4
KiB) and 48 of a multiprocessor's 227 KiB of shared memory, so two programs run on it at a time.
tests/model/test_triton_compiles.py compiles every variant.
"""

import triton
import triton.language as tl

COLUMNS = tl.constexpr(64)
LEAST_ROWS, MOST_ROWS = 16, 64
"""A matrix product needs 16."""
MODES = tl.constexpr(16)
"""Modes that `build` and `correlate` take together."""
MANY_MODES = tl.constexpr(128)
"""Modes that `differentiate` takes together."""
WARPS = 4
PI = tl.constexpr(3.141592653589793)


@triton.jit
def _multiply(a, b, c, d):
    """(a + ib) (c + id)."""
    return a * c - b * d, a * d + b * c


@triton.jit
def _complex_at(pointer, at, valid):
    """Complex numbers stored as pairs, in float64; 0 where not valid."""
    real = tl.load(pointer + 2 * at, mask=valid, other=0.0).to(tl.float64)
    return real, tl.load(pointer + 2 * at + 1, mask=valid, other=0.0).to(tl.float64)


@triton.jit
def _store_complex(pointer, at, real, imaginary, valid):
    tl.store(pointer + 2 * at, real.to(tl.float32), mask=valid)
    tl.store(pointer + 2 * at + 1, imaginary.to(tl.float32), mask=valid)


@triton.jit
def _eigenvalues(inv_A_real, A_imag, at, valid):
    """lambda, in float64."""
    real = -tl.exp(tl.load(inv_A_real + at, mask=valid, other=0.0).to(tl.float64))
    return real, tl.load(A_imag + at, mask=valid, other=0.0).to(tl.float64)


@triton.jit
def _half_turn(half_turns, TYPE: tl.constexpr, TERMS: tl.constexpr):
    """cos and sin of pi half_turns, given in float64, by their series of TERMS after the first.

    Modulo a half turn: pi / 2 at most, where 7 terms are within 1e-10, and 10 within 1e-16.
    """
    whole = tl.floor(half_turns + 0.5)
    angle = ((half_turns - whole) * PI).to(TYPE)
    square = angle * angle
    cosine, sine = tl.full(square.shape, 1.0, TYPE), tl.full(square.shape, 1.0, TYPE)
    for k in tl.static_range(2 * TERMS, 0, -2):
        cosine = 1.0 - square * cosine * (1.0 / (k * (k - 1)))
        sine = 1.0 - square * sine * (1.0 / (k * (k + 1)))
    sign = (1 - 2 * (whole.to(tl.int32) & 1)).to(TYPE)
    return sign * cosine, sign * angle * sine


@triton.jit
def _held(real, imaginary, dt):
    """exp(z) and (exp(z) - 1) / lambda of z = lambda dt, in float64."""
    modulus = tl.exp(real * dt)
    cosine, sine = _half_turn(imaginary * dt / PI, tl.float64, 10)
    one_step, one_step_imaginary = modulus * cosine, modulus * sine
    square = real * real + imaginary * imaginary
    held, held_imaginary = _multiply(
        one_step - 1.0, one_step_imaginary, real / square, -imaginary / square
    )
    return one_step, one_step_imaginary, held, held_imaginary


@triton.jit
def _powers(decay, half_turns, lags):
    """exp((decay + i pi half_turns) lags) in float32, from float64 that broadcasts with lags."""
    cosine, sine = _half_turn(half_turns * lags, tl.float32, 7)
    modulus = tl.exp((decay * lags).to(tl.float32))
    return modulus * cosine, modulus * sine


@triton.jit
def _weights(B, C, held, held_imaginary, at, of_C, valid):
    """c = 2 B C held, in float64."""
    input_real, input_imaginary = _complex_at(B, at, valid)
    real, imaginary = _multiply(input_real, input_imaginary, held, held_imaginary)
    output_real, output_imaginary = _complex_at(C, of_C, valid)
    return _multiply(2.0 * real, 2.0 * imaginary, output_real, output_imaginary)


@triton.jit
def _added(total, c, c_imaginary, row, row_imaginary,
           column, column_imaginary):  # fmt: skip
    """total + Re sum_n c_n row_n column_n: (ROWS, COLUMNS) from (n), (ROWS, n), (n, COLUMNS)."""
    left, left_imaginary = _multiply(
        row, row_imaginary, c.to(tl.float32)[None, :], c_imaginary.to(tl.float32)[None, :]
    )
    total = tl.dot(left, column, total, input_precision="tf32x3")
    return tl.dot(-left_imaginary, column_imaginary, total, input_precision="tf32x3")


@triton.jit(do_not_specialize=["lags", "size", "reverse_end"])
def build(
    kernel, inv_A_real, A_imag, log_dt, B, C, D,
    channels, modes, lags, size, reverse_end,
    SETS: tl.constexpr, DIRECTIONS: tl.constexpr, HOLD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write kernel (H, F); program (h, t) its tile t of lags, and a share of the zeros between."""
    h, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tile * ROWS * COLUMNS + COLUMNS * tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64))
    causal = tl.zeros((ROWS, COLUMNS), tl.float32)
    reverse = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, modes, MODES):
        n = start + tl.arange(0, MODES)
        valid = n < modes
        for e in tl.static_range(SETS):
            at = (e * channels + h) * modes + n
            real, imaginary = _eigenvalues(inv_A_real, A_imag, at, valid)
            decay, half_turns = real * dt, imaginary * dt / PI
            row, row_imaginary = _powers(
                decay[None, :], half_turns[None, :], rows[:, None].to(tl.float64)
            )
            column, column_imaginary = _powers(
                decay[:, None], half_turns[:, None], columns[None, :].to(tl.float64)
            )
            if HOLD:
                _, _, held, held_imaginary = _held(real, imaginary, dt)
            else:
                held, held_imaginary = 1.0, 0.0
            if e == 0:
                c, c_imaginary = _weights(B, C, held, held_imaginary, at, h * modes + n, valid)
                causal = _added(
                    causal, c, c_imaginary, row, row_imaginary, column, column_imaginary
                )
            if DIRECTIONS == 2 and e == SETS - 1:
                of_C = (channels + h) * modes + n
                c, c_imaginary = _weights(B, C, held, held_imaginary, at, of_C, valid)
                reverse = _added(
                    reverse, c, c_imaginary, row, row_imaginary, column, column_imaginary
                )
    lag = rows[:, None] + columns[None, :]
    kernel += h * size
    if DIRECTIONS == 2:
        tl.store(kernel + reverse_end - lag, reverse, mask=(lag > 0) & (lag < lags))
        causal += tl.where(lag == 0, reverse, 0.0)
    causal += tl.where(lag == 0, tl.load(D + h), 0.0)
    tl.store(kernel + lag, causal, mask=lag < lags)
    for start in range(lags, size, tl.num_programs(1) * ROWS * COLUMNS):  # a tile each
        index = start + lag
        between = index < size
        if DIRECTIONS == 2:
            between = between & ((index <= reverse_end - lags) | (index >= reverse_end))
        tl.store(kernel + index, tl.zeros((ROWS, COLUMNS), tl.float32), mask=between)


@triton.jit(do_not_specialize=["lags", "size", "reverse_end"])
def correlate(
    sums, grad, inv_A_real, A_imag, log_dt, channels, modes, lags, size, reverse_end,
    SETS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write sums (D, H, N, 4): of g_l exp(z l) and of g_l l exp(z l), real and imaginary.

    g (lags,) is a direction's part of the kernel's gradient, grad (H, F). Program (h, b, d): block
    b of the modes of direction d.
    """
    h, d = tl.program_id(0).to(tl.int64), tl.program_id(2)
    n = tl.program_id(1) * MODES + tl.arange(0, MODES)
    valid = n < modes
    at = h * modes + n
    if SETS == 2:
        at += d * channels * modes
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64))
    real, imaginary = _eigenvalues(inv_A_real, A_imag, at, valid)
    decay, half_turns = (real * dt)[None, :], (imaginary * dt / PI)[None, :]
    columns = tl.arange(0, COLUMNS)
    column, column_imaginary = _powers(decay, half_turns, columns[:, None].to(tl.float64))
    plain, plain_imaginary = tl.zeros((MODES,), tl.float32), tl.zeros((MODES,), tl.float32)
    by_lag, by_lag_imaginary = tl.zeros((MODES,), tl.float32), tl.zeros((MODES,), tl.float32)
    for first in range(0, lags, ROWS * COLUMNS):
        rows = first + COLUMNS * tl.arange(0, ROWS)
        lag = rows[:, None] + columns[None, :]
        index = tl.where((d == 0) | (lag == 0), lag, reverse_end - lag)
        g = tl.load(grad + h * size + index, mask=lag < lags, other=0.0)
        inner = tl.dot(g, column, input_precision="tf32x3")  # (ROWS, n)
        inner_imaginary = tl.dot(g, column_imaginary, input_precision="tf32x3")
        g *= columns[None, :].to(tl.float32)
        more = tl.dot(g, column, input_precision="tf32x3")
        more_imaginary = tl.dot(g, column_imaginary, input_precision="tf32x3")
        more += inner * rows[:, None].to(tl.float32)
        more_imaginary += inner_imaginary * rows[:, None].to(tl.float32)
        row, row_imaginary = _powers(decay, half_turns, rows[:, None].to(tl.float64))
        part, part_imaginary = _multiply(row, row_imaginary, inner, inner_imaginary)
        plain += tl.sum(part, 0)
        plain_imaginary += tl.sum(part_imaginary, 0)
        part, part_imaginary = _multiply(row, row_imaginary, more, more_imaginary)
        by_lag += tl.sum(part, 0)
        by_lag_imaginary += tl.sum(part_imaginary, 0)
    sums += 4 * ((d * channels + h) * modes + n)
    tl.store(sums, plain, mask=valid)
    tl.store(sums + 1, plain_imaginary, mask=valid)
    tl.store(sums + 2, by_lag, mask=valid)
    tl.store(sums + 3, by_lag_imaginary, mask=valid)


@triton.jit(do_not_specialize=["size"])
def differentiate(
    sums, grad, inv_A_real, A_imag, log_dt, B, C,
    to_inv_A_real, to_A_imag, to_log_dt, to_B, to_C, to_D, channels, modes, size,
    SETS: tl.constexpr, DIRECTIONS: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """Write each parameter's gradient from sums (D, H, N, 4) and grad (H, F); program h.

    The conjugate of the gradient of complex p, for k = Re f(p), is the sum of grad_l df_l / dp: all
    are computed so, by the chain rule without conjugates, and stored conjugate.
    """
    h = tl.program_id(0).to(tl.int64)
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64))
    of_log_dt = tl.zeros((MANY_MODES,), tl.float64)
    for start in range(0, modes, MANY_MODES):
        n = start + tl.arange(0, MANY_MODES)
        valid = n < modes
        for e in tl.static_range(SETS):
            at = (e * channels + h) * modes + n
            real, imaginary = _eigenvalues(inv_A_real, A_imag, at, valid)
            b, b_imaginary = _complex_at(B, at, valid)
            w, w_imaginary = b, b_imaginary  # c = 2 w C
            if HOLD:
                one_step, one_step_imaginary, held, held_imaginary = _held(real, imaginary, dt)
                w, w_imaginary = _multiply(b, b_imaginary, held, held_imaginary)
            of_z, of_z_imaginary = tl.zeros_like(real), tl.zeros_like(real)
            of_w, of_w_imaginary = tl.zeros_like(real), tl.zeros_like(real)
            for d in tl.static_range(DIRECTIONS):
                if SETS == 1 or d == e:
                    in_C = (d * channels + h) * modes + n
                    of_c, of_c_imaginary = _complex_at(sums, 2 * in_C, valid)
                    by_lag, by_lag_imaginary = _complex_at(sums, 2 * in_C + 1, valid)
                    c, c_imaginary = _complex_at(C, in_C, valid)
                    x, y = _multiply(of_c, of_c_imaginary, 2.0 * w, 2.0 * w_imaginary)
                    _store_complex(to_C, in_C, x, -y, valid)
                    x, y = _multiply(of_c, of_c_imaginary, 2.0 * c, 2.0 * c_imaginary)
                    of_w += x
                    of_w_imaginary += y
                    x, y = _multiply(w, w_imaginary, 2.0 * c, 2.0 * c_imaginary)
                    x, y = _multiply(x, y, by_lag, by_lag_imaginary)
                    of_z += x
                    of_z_imaginary += y
            of_real, of_imaginary = tl.zeros_like(real), tl.zeros_like(real)
            if HOLD:  # w = B held, held = (exp(z) - 1) / lambda
                square = real * real + imaginary * imaginary
                x, y = _multiply(of_w, of_w_imaginary, b, b_imaginary)
                x, y = _multiply(x, y, real / square, -imaginary / square)
                of_real, of_imaginary = _multiply(x, y, -held, -held_imaginary)
                x, y = _multiply(x, y, one_step, one_step_imaginary)
                of_z += x
                of_z_imaginary += y
                of_w, of_w_imaginary = _multiply(of_w, of_w_imaginary, held, held_imaginary)
            _store_complex(to_B, at, of_w, -of_w_imaginary, valid)
            of_real += of_z * dt
            of_imaginary += of_z_imaginary * dt
            tl.store(to_inv_A_real + at, (of_real * real).to(tl.float32), mask=valid)
            tl.store(to_A_imag + at, (-of_imaginary).to(tl.float32), mask=valid)
            of_log_dt += (of_z * real - of_z_imaginary * imaginary) * dt
    tl.store(to_log_dt + h, tl.sum(of_log_dt, 0).to(tl.float32))  # 0 of what is not valid
    tl.store(to_D + h, tl.load(grad + h * size))


def rows_for(lags: int) -> int:
    """ROWS for a number of lags, at least 1: a tile of all of them where one of 64 rows would."""
    rows = triton.next_power_of_2(-(-lags // COLUMNS.value))
    return int(min(MOST_ROWS, max(LEAST_ROWS, rows)))
