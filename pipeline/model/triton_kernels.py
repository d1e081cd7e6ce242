"""The two-sided kernel of a state-space layer in one Triton kernel, and its gradients in two.

Shapes: H channels, N complex modes, D directions, E sets of eigenvalues, as in vandermonde.py; F
size of the circular kernel (long_conv.py). A program works on one channel. Lags come in tiles of
ROWS x COLUMNS, l = row + column with rows a multiple of COLUMNS: exp(z l) = exp(z row) exp(z
column), so that both the kernel and the sums of its gradient are small matrix products.

Precision: angles are taken modulo half a turn in float64 and then rounded, so exponentials have
float32's rounding at any lag; products are sums of three tf32 products, which keep it on tensor
cores; what happens once a mode is in float64. No program writes where another does, and every sum
has a fixed order: results are the same bit for bit.

Sizes, for an H100: with tiles of 64 x 64 lags and blocks of 16 modes `build` takes 168 of 255
registers a thread and 24 of a multiprocessor's 227 KiB of shared memory, so three programs run on
it at a time; `correlate` all, 260 bytes of local memory and 48 KiB, so two do. Blocks of 32 modes
double those. tests/model/test_triton_compiles.py compiles every variant.
"""

import math

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
PI = tl.constexpr(math.pi)
COSINE = tl.constexpr(tuple((-1) ** k / math.factorial(2 * k) for k in range(11)))
SINE = tl.constexpr(tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(11)))
"""Coefficients of cos x and sin(x) / x in powers of x^2."""


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
    """cos and sin of pi half_turns, given in float64, by their series to the power 2 TERMS.

    Modulo a half turn: pi / 2 at most, where 7 terms are within 1e-10, and 10 within 1e-16.
    """
    whole = tl.floor(half_turns + 0.5)
    angle = ((half_turns - whole) * PI).to(TYPE)
    square = angle * angle
    cosine = tl.full(square.shape, COSINE[TERMS], TYPE)
    sine = tl.full(square.shape, SINE[TERMS], TYPE)
    for k in tl.static_range(TERMS - 1, -1, -1):
        cosine = cosine * square + COSINE[k]
        sine = sine * square + SINE[k]
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
def _tf32(x):
    """x rounded to tf32, which has 13 bits less, half away from zero."""
    return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _split(x):
    """x as a sum of two of tf32."""
    high = _tf32(x)
    return high, _tf32(x - high)


@triton.jit
def _product(high, low, other_high, other_low, total):
    """total + (high + low) (other_high + other_low)^T, without the product of the low parts.

    What `input_precision="tf32x3"` does, but it splits an operand again in each thread that reads
    it, and in each product.
    """
    total = tl.dot(low, tl.trans(other_high), total, input_precision="tf32")
    total = tl.dot(high, tl.trans(other_low), total, input_precision="tf32")
    return tl.dot(high, tl.trans(other_high), total, input_precision="tf32")


@triton.jit
def _added(total, c, c_imaginary, row, row_imaginary, high, low, high_imaginary, low_imaginary):
    """total + Re sum_n c_n row_n column_n: (ROWS, COLUMNS) from (n), (ROWS, n), and column
    (COLUMNS, n) as sums of two."""
    left, left_imaginary = _multiply(
        row, row_imaginary, c.to(tl.float32)[None, :], c_imaginary.to(tl.float32)[None, :]
    )
    left_high, left_low = _split(left)
    total = _product(left_high, left_low, high, low, total)
    left_high, left_low = _split(-left_imaginary)
    return _product(left_high, left_low, high_imaginary, low_imaginary, total)


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
                decay[None, :], half_turns[None, :], columns[:, None].to(tl.float64)
            )
            high, low = _split(column)
            high_imaginary, low_imaginary = _split(column_imaginary)
            if HOLD:
                _, _, held, held_imaginary = _held(real, imaginary, dt)
            else:
                held, held_imaginary = 1.0, 0.0
            if e == 0:
                c, c_imaginary = _weights(B, C, held, held_imaginary, at, h * modes + n, valid)
                causal = _added(
                    causal, c, c_imaginary, row, row_imaginary,
                    high, low, high_imaginary, low_imaginary,
                )  # fmt: skip
            if DIRECTIONS == 2 and e == SETS - 1:
                of_C = (channels + h) * modes + n
                c, c_imaginary = _weights(B, C, held, held_imaginary, at, of_C, valid)
                reverse = _added(
                    reverse, c, c_imaginary, row, row_imaginary,
                    high, low, high_imaginary, low_imaginary,
                )  # fmt: skip
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
    DIRECTIONS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write sums (D, H, N, 4): of g_l exp(z l) and of g_l l exp(z l), real and imaginary.

    g (lags,) is a direction's part of the kernel's gradient, grad (H, F). Program (h, b, e): block
    b of the modes of set e, which DIRECTIONS share, the first of them direction e.
    """
    h, e = tl.program_id(0).to(tl.int64), tl.program_id(2)
    n = tl.program_id(1) * MODES + tl.arange(0, MODES)
    valid = n < modes
    dt = tl.exp(tl.load(log_dt + h).to(tl.float64))
    at = (e * channels + h) * modes + n
    real, imaginary = _eigenvalues(inv_A_real, A_imag, at, valid)
    decay, half_turns = real * dt, imaginary * dt / PI
    columns = tl.arange(0, COLUMNS)
    column, column_imaginary = _powers(
        decay[:, None], half_turns[:, None], columns[None, :].to(tl.float64)
    )
    lag_of_column = columns[None, :].to(tl.float32)
    high, low = _split(column)
    high_imaginary, low_imaginary = _split(column_imaginary)
    high_by_lag, low_by_lag = _split(column * lag_of_column)
    high_by_lag_imaginary, low_by_lag_imaginary = _split(column_imaginary * lag_of_column)
    direction = tl.arange(0, DIRECTIONS)[:, None]
    plain = tl.zeros((DIRECTIONS, MODES), tl.float32)
    plain_imaginary, by_lag, by_lag_imaginary = plain, plain, plain
    for first in range(0, lags, ROWS * COLUMNS):
        rows = first + COLUMNS * tl.arange(0, ROWS)
        row, row_imaginary = _powers(
            decay[None, :], half_turns[None, :], rows[:, None].to(tl.float64)
        )
        lag = rows[:, None] + columns[None, :]
        lag_of_row = rows[:, None].to(tl.float32)
        for d in range(DIRECTIONS):
            index = tl.where((e + d == 0) | (lag == 0), lag, reverse_end - lag)
            g = tl.load(grad + h * size + index, mask=lag < lags, other=0.0)
            g_high, g_low = _split(g)
            none = tl.zeros((ROWS, MODES), tl.float32)
            inner = _product(g_high, g_low, high, low, none)
            inner_imaginary = _product(g_high, g_low, high_imaginary, low_imaginary, none)
            more = _product(g_high, g_low, high_by_lag, low_by_lag, inner * lag_of_row)
            more_imaginary = _product(
                g_high, g_low, high_by_lag_imaginary, low_by_lag_imaginary,
                inner_imaginary * lag_of_row,
            )  # fmt: skip
            x, y = _multiply(row, row_imaginary, inner, inner_imaginary)
            plain += tl.where(direction == d, tl.sum(x, 0)[None, :], 0.0)
            plain_imaginary += tl.where(direction == d, tl.sum(y, 0)[None, :], 0.0)
            x, y = _multiply(row, row_imaginary, more, more_imaginary)
            by_lag += tl.where(direction == d, tl.sum(x, 0)[None, :], 0.0)
            by_lag_imaginary += tl.where(direction == d, tl.sum(y, 0)[None, :], 0.0)
    to = sums + 4 * (((e + direction) * channels + h) * modes + n[None, :])
    written = (direction < DIRECTIONS) & valid[None, :]
    tl.store(to, plain, mask=written)
    tl.store(to + 1, plain_imaginary, mask=written)
    tl.store(to + 2, by_lag, mask=written)
    tl.store(to + 3, by_lag_imaginary, mask=written)


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
