"""The bidirectional diagonal state-space layer of the encoder.

Shapes: B batch, L positions, H channels, N complex modes, D directions (causal, then reverse), E
sets of eigenvalues (1 shared by the directions, or one each). Each channel convolves its input with
the kernel of `vandermonde.py` in each direction; step and skip are shared by the directions, C is
not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .config import LocostConfig
from .kept_kernels import BLOCK_ELEMENTS, TRUNCATED_FROM, KeptKernels, kept_limit
from .kernel_build import BUILDS, KernelBuild
from .layers import FromChannels, IntoChannels, at_least_fp32
from .long_conv import ROWS, Convolution, Layout, two_sided
from .row_pairs import PAIRS
from .sequence import ALONE, SequenceGroup, own_channels, swap, unswap
from .vandermonde import Vandermonde, levels, modes, reach

KERNEL_PARAMETERS = ("inv_A_real", "A_imag", "log_dt", "B", "C", "D")
SPECTRUM_SHARE = 4
"""The kernels' spectra are kept for backward where they take at most 1 / 4 of the input's bytes."""


Transform = Literal["rows", "pairs"]
"""A row of the batch in a real FFT, or two in a complex one."""
TRANSFORMS: dict[Transform, Convolution] = {"rows": ROWS, "pairs": PAIRS}


@torch.no_grad()
def state_space_convolution(
    u: Tensor,
    parameters: Sequence[Tensor],
    hold: bool,
    published: bool = False,
    lags: Sequence[int] = (),
    kept: Tensor | None = None,
    out: Tensor | None = None,
    build: KernelBuild = "torch",
    transform: Transform = "rows",
    spectra: list[Tensor] | None = None,
) -> Tensor:
    """u (B, H, L) convolved with the kernels of the parameters, a block of channels at a time.

    `lags`: those that each channel's kernel needs; a block computes its maximum. `kept`: the
    kernels (D, H, at least L) where they are known. `out`: where to write; it may be u. `spectra`:
    gets those of each block's kernels.
    """
    dtype, length = working_type(u, parameters[-1]), u.shape[-1]
    layout = Layout.of(length, max(lags, default=length), published)
    z = torch.empty_like(u) if out is None else out
    way = TRANSFORMS[transform]
    with torch.autocast(u.device.type, enabled=False):
        for block, part in channel_blocks(u, parameters, layout):
            layout = Layout.of(length, max(lags[block], default=length), published)
            if kept is None:
                kernel = BUILDS[build](part, hold, layout, dtype).kernel()
            else:
                kernel = two_sided(kept[:, block, : layout.lags], part[-1][0], layout)
            spectrum = way.kernel_spectrum(kernel)
            way.convolve(u[:, block], spectrum, layout, z[:, block])
            if spectra is not None:
                spectra.append(spectrum)
    return z


def needed_lags(
    u: Tensor, parameters: Sequence[Tensor], hold: bool, tolerance: float | None = None
) -> list[int]:
    """The `reach` of each channel's kernel, at most the length of u (B, H, L).

    The default tolerance is the rounding of the working type.
    """
    rounding = torch.finfo(working_type(u, parameters[-1])).eps / 2
    bound = rounding if tolerance is None else tolerance
    return reach(*modes(*parameters[:-1], hold=hold), u.shape[-1], bound).tolist()


class _StateSpaceConvolution(torch.autograd.Function):
    """The layer's two-sided convolution; saves its inputs, and the kernels' spectra where they are
    small, and recomputes the rest in backward."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, hold: bool, published: bool, build: KernelBuild,
        transform: Transform, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.hold, ctx.layout = hold, Layout.of(u.shape[-1], published=published)
        ctx.build, ctx.way = BUILDS[build], TRANSFORMS[transform]
        width = working_type(u, parameters[-1]).itemsize
        size = ctx.layout.size * (2 if transform == "pairs" else 1)
        kept = keeps_spectra(u.shape[0], u.shape[-1], size, u.itemsize, width)
        spectra: list[Tensor] = []
        z = state_space_convolution(
            u, parameters, hold, published, build=build, transform=transform,
            spectra=spectra if kept else None,
        )  # fmt: skip
        ctx.save_for_backward(u, *parameters, *spectra)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, *saved = ctx.saved_tensors
        parameters, spectra = saved[: len(KERNEL_PARAMETERS)], saved[len(KERNEL_PARAMETERS) :]
        layout, dtype = ctx.layout, working_type(u, parameters[-1])
        grad_u = torch.empty_like(u)
        grads = []
        with torch.autocast(u.device.type, enabled=False):
            for index, (block, part) in enumerate(channel_blocks(u, parameters, layout)):
                build = ctx.build(part, ctx.hold, layout, dtype, differentiable=True)
                spectrum = spectra[index] if spectra else ctx.way.kernel_spectrum(build.kernel())
                grad_kernel = ctx.way.convolve_backward(
                    u[:, block], grad[:, block], spectrum, layout, grad_u[:, block]
                )
                grads.append(build.gradients(grad_kernel))
        return grad_u, None, None, None, None, *map(_of_all_channels, zip(*grads, strict=True))


def _of_all_channels(blocks: Sequence[Tensor]) -> Tensor:
    """A parameter's gradient from those of the blocks of channels, its second dimension."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), dim=1)


def keeps_spectra(samples: int, length: int, size: int, input_bytes: int, width: int) -> bool:
    """Whether the kernels' spectra, `size` numbers a channel, are kept for backward: where they are
    small against the input (B, H, L), which is kept too; bytes of a number of each."""
    return SPECTRUM_SHARE * size * width <= samples * length * input_bytes


def channel_blocks(
    u: Tensor, parameters: Sequence[Tensor], layout: Layout
) -> Iterator[tuple[slice, list[Tensor]]]:
    """Slices of channels, with the parameters' part of each, that fit BLOCK_ELEMENTS."""
    inner, outer = levels(layout.lags)
    state_dim = parameters[0].shape[-1]
    width = max(u.shape[0] * layout.size, 2 * (inner + 2 * outer) * state_dim)
    allowed = BLOCK_ELEMENTS.get(u.device.type, max(BLOCK_ELEMENTS.values()))
    size = max(1, allowed // width)
    for start in range(0, u.shape[1], size):
        block = slice(start, start + size)
        yield block, [parameter[:, block] for parameter in parameters]


def working_type(u: Tensor, parameter: Tensor) -> torch.dtype:
    """Type of kernel and FFT: that of input and parameters, at least float32."""
    return at_least_fp32(torch.promote_types(u.dtype, parameter.dtype))


class BidirectionalSSM(nn.Module):
    """W_o (q * ssm(k)) + b_o, with q and k affine in the input and ssm the two-sided convolution.

    The mask comes after the projection of k, since that has a bias: padding then neither adds to
    real positions nor changes their values. Complex q and k (the paper's) are convolved with the
    same real kernel; the real part of their product is the input of W_o.
    """

    def __init__(self, config: LocostConfig) -> None:
        super().__init__()
        channels, modes_ = config.d_model, config.state_dim
        directions = 1 if config.ssm_directions == "causal" else 2
        sets = (2,) if config.ssm_directions == "separate" else ()
        as_in_paper = config.ssm_initialisation == "paper"
        self.hold = config.ssm_discretisation == "zero_order_hold"
        self.published = config.published_convolution
        self.kernel_build: KernelBuild = "torch"
        """How kernels and their gradients are computed."""
        self.transform: Transform = "rows"
        """Of training batches."""
        self.sequence: SequenceGroup = ALONE
        """The processes that share the positions."""
        self.parts = 2 if config.ssm_projections == "complex" else 1
        self.kept = KeptKernels(kept_limit(config))
        """Used without gradients and outside training, where parameters stand still."""
        self.inv_A_real = nn.Parameter(torch.full((*sets, channels, modes_), math.log(0.5)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(modes_).repeat(*sets, channels, 1))
        if as_in_paper:
            self.log_dt = nn.Parameter(torch.log(1 - torch.rand(channels)))
            self.B = nn.Parameter(torch.randn(*sets, channels, modes_, 2) * 0.5**0.5)
        else:
            first, last = math.log(config.ssm_dt_min), math.log(config.ssm_dt_max)
            self.log_dt = nn.Parameter(torch.empty(channels).uniform_(first, last))
            self.B = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(*sets, channels, modes_, 1))
        self.C = nn.Parameter(torch.randn(directions, channels, modes_, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(channels))
        self.q_proj = IntoChannels(channels, self.parts * channels)
        self.k_proj = IntoChannels(channels, self.parts * channels)
        self.output = FromChannels(channels, channels)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, L, H), mask (B, L) of 1 (real) and 0 or None -> (B, L, H)."""
        return self.gate(x, self.convolution(self.keys(x, mask)))

    def keys(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Input of the convolution: (B, L, H) -> (B, H, L), or (B, 2H, L), real then imaginary."""
        k = self.k_proj(x)
        return k if mask is None else k * mask[:, None].to(k.dtype)

    def gate(self, x: Tensor, z: Tensor) -> Tensor:
        """The layer's output (B, L, H) from its input and the convolved keys, token by token."""
        gated = self.q_proj(x) * z
        if self.parts == 2:
            real, imaginary = gated.chunk(2, dim=1)
            gated = real - imaginary
        return self.output(gated)

    def convolution(self, k: Tensor) -> Tensor:
        """The state-space models alone, of `keys` to the same shape; without gradients in place.

        Of a source that several processes share, each convolves some channels at all positions.
        """
        u = k.unflatten(1, (self.parts, -1)).flatten(0, 1)  # (B parts, H, L)
        own = own_channels(u.shape[1], self.sequence)
        parameters = [parameter[:, own] for parameter in self.kernel_parameters()]
        u = swap(u, self.sequence)
        del k  # the caller may hold none either
        length = u.shape[-1]
        if self.published and length % 2:  # the published code makes lengths even
            u = torch.nn.functional.pad(u, (0, 1))
        if torch.is_grad_enabled():
            transform = self.transform if len(u) > 1 else "rows"
            z = _StateSpaceConvolution.apply(
                u, self.hold, self.published, self.kernel_build, transform, *parameters
            )
        else:
            truncated = length >= TRUNCATED_FROM and not self.published
            lags = needed_lags(u, parameters, self.hold) if truncated else ()
            kept = None if truncated or self.training else self._kept(u, parameters)
            z = state_space_convolution(
                u, parameters, self.hold, self.published, lags, kept, u, self.kernel_build
            )
        z = unswap(z[..., :length], self.sequence)
        return z.unflatten(0, (-1, self.parts)).flatten(1, 2)

    def _kept(self, u: Tensor, parameters: Sequence[Tensor]) -> Tensor | None:
        """The kernels for an input (B, H, L), kept for the next one unless it is too long."""
        with torch.autocast(u.device.type, enabled=False):
            dtype = working_type(u, parameters[-1])
            return self.kept.kernels(u.shape[-1], parameters[:-1], self.hold, dtype)

    def train(self, mode: bool = True) -> "BidirectionalSSM":
        """Training mode keeps no kernels."""
        if mode:
            self.kept.forget()
        return super().train(mode)

    def kernel_parameters(self) -> list[Tensor]:
        """The kernel's parameters, channels second: (E, H, N) twice, (1, H), (E, H, N, 2),
        (D, H, N, 2), (1, H)."""
        dimensions = {"inv_A_real": 3, "A_imag": 3, "log_dt": 2, "B": 4, "C": 4, "D": 2}
        values = {name: getattr(self, name) for name in KERNEL_PARAMETERS}
        return [x if x.dim() == dimensions[name] else x[None] for name, x in values.items()]

    @torch.no_grad()
    def kernels(self, length: int) -> Tensor:
        """The kernel of each direction (D, H, length), without the skip, for plots."""
        *dynamics, skip = self.kernel_parameters()
        return Vandermonde(
            *modes(*dynamics, hold=self.hold), length, at_least_fp32(skip.dtype)
        ).kernel()


def ssm_layers(model: nn.Module) -> list[BidirectionalSSM]:
    """All of a model's."""
    return [module for module in model.modules() if isinstance(module, BidirectionalSSM)]
