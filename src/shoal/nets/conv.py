"""Convolutions over NHWC images: `{"w": [kernel, kernel, channels, filters], "b": [filters]}`."""

from __future__ import annotations

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.algorithm import Params
from shoal.core.errors import BadInput
from shoal.core.trajectory import Array
from shoal.nets.initial import Fill, Orthogonal, Plan
from shoal.nets.mlp import HIDDEN_GAIN

NARROW = 16  # stride x channels up to which the kernel's gradient is quicker by blocks


class Layer(NamedTuple):
    filters: int
    kernel: int
    stride: int


def parse(text: str) -> Layer:
    """Parse `32x8/4`: 32 filters of 8 by 8 with stride 4."""
    match = re.fullmatch(r"(\d+)x(\d+)/(\d+)", text)
    layer = Layer(*map(int, match.groups())) if match else None
    if layer is None or min(layer) < 1:
        raise BadInput(f"convolution {text!r} is not filters x kernel / stride, such as 32x8/4 (whole numbers from 1)")
    return layer


def flat_size(shape: tuple[int, ...], conv: tuple[str, ...]) -> int:
    """The number of outputs for an image of this shape. Raises `BadInput` if the image is too small for a layer."""
    height, width, channels = shape
    for i, text in enumerate(conv):
        filters, kernel, stride = parse(text)
        if kernel > min(height, width):
            raise BadInput(
                f"conv layer {i + 1} ({text}) needs at least {kernel}x{kernel} pixels and gets {height}x{width} of an"
                f" image of {shape[0]}x{shape[1]}: give --net.conv fewer layers, smaller kernels or smaller strides"
            )
        height, width, channels = (height - kernel) // stride + 1, (width - kernel) // stride + 1, filters
    return height * width * channels


def plan_conv(channels: int, conv: tuple[str, ...]) -> Plan:
    """`conv0`, `conv1`, ...: orthogonal kernels, zero biases."""
    plan: Plan = {}
    for i, text in enumerate(conv):
        filters, kernel, _ = parse(text)
        plan[f"conv{i}"] = {
            "w": Orthogonal((kernel, kernel, channels, filters), HIDDEN_GAIN),
            "b": Fill((filters,)),
        }
        channels = filters
    return plan


def convolve(params: Params, image: Array, conv: tuple[str, ...]) -> Array:
    """[..., H, W, C] -> [..., features]. Bytes are scaled to 0..1; each layer is followed by relu."""
    leading = image.shape[:-3]
    x = jnp.asarray(image).reshape(-1, *image.shape[-3:])
    for i, text in enumerate(conv):
        layer = params[f"conv{i}"]
        x = jax.nn.relu(correlate(x, layer["w"], parse(text).stride) + layer["b"])
    return _numbers(x).reshape(*leading, -1)  # still bytes if there is no layer


def correlate(x: Array, w: Array, stride: int) -> Array:
    """[B, H, W, C] and [k, k, C, F] -> [B, H', W', F], without padding. Bytes count as 0..1.

    The forward pass is XLA's convolution. The gradients are matrix products instead: XLA's own are convolutions with kernels
    as large as the image, which on a CPU take 10 to 30 times as long inside a compiled loop, and an update is such a loop.
    A few images are processed at a time, so that intermediate values stay in the cache: less than half the time of all at
    once.
    """
    batch, kernel = x.shape[0], w.shape[0]
    few = _few(batch)

    def pieces(array: Array) -> Array:
        return array.reshape(batch // few, few, *array.shape[1:])

    @jax.custom_vjp
    def layer(x: Array, w: Array) -> Array:
        y = jax.lax.map(lambda piece: _forward(_numbers(piece), w, stride), pieces(x))
        return y.reshape(batch, *y.shape[2:])

    def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
        return layer(x, w), (x, w)

    def backward(saved: tuple[Array, Array], dy: Array) -> tuple[Array | None, Array]:
        x, w = saved
        narrow = stride > 1 and stride * x.shape[-1] <= NARROW
        gradient = _kernel_gradient_by_blocks if narrow else _kernel_gradient

        def add(dw: Array, piece: tuple[Array, Array]) -> tuple[Array, None]:
            return dw + gradient(piece[0], kernel, piece[1], stride), None

        dw, _ = jax.lax.scan(add, jnp.zeros_like(w), (pieces(x), pieces(dy)))
        if x.dtype == jnp.uint8:
            return None, dw
        dx = jax.lax.map(lambda piece: _input_gradient(x.shape[1:], w, piece, stride), pieces(dy))
        return dx.reshape(x.shape), dw

    layer.defvjp(forward, backward)
    return layer(x, w)


def _few(batch: int) -> int:
    """The number of images at a time: the largest divisor of `batch` up to 16; all if that is below 4."""
    found = max(n for n in range(1, 17) if batch % n == 0)
    return found if found >= 4 else batch


def _numbers(x: Array) -> Array:
    return x.astype(jnp.float32) * (1.0 / 255.0) if x.dtype == jnp.uint8 else x


def _forward(x: Array, w: Array, stride: int) -> Array:
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _kernel_gradient(x: Array, kernel: int, dy: Array, stride: int) -> Array:
    """[k, k, C, F], row by row of the kernel; along a row, `stride` pixels at a time are one vector of stride x C numbers."""
    x = _numbers(x)
    (batch, rows, columns, filters), (width, channels) = dy.shape, x.shape[2:]
    reach = -(-kernel // stride)  # vectors that a row of the kernel covers, the last perhaps in part
    vectors = columns + reach - 1
    x = jnp.pad(x, ((0, 0), (0, 0), (0, max(0, vectors * stride - width)), (0, 0)))
    flat = dy.reshape(-1, filters)
    found = []
    for i in range(kernel):
        row = x[:, i : i + (rows - 1) * stride + 1 : stride, : vectors * stride]
        row = row.reshape(batch * rows, vectors, stride * channels)
        found += [row[:, j : j + columns].reshape(-1, stride * channels).T @ flat for j in range(reach)]
    return jnp.stack(found).reshape(kernel, reach * stride, channels, filters)[:, :kernel]


def _kernel_gradient_by_blocks(x: Array, kernel: int, dy: Array, stride: int) -> Array:
    """[k, k, C, F], as one product of blocks of `stride` x `stride` pixels with the outputs that saw each block.

    For the first layer of a net: with few channels, one product per row of the kernel is small and takes twice as long.
    """
    (batch, rows, columns, filters), (height, width, channels) = dy.shape, x.shape[1:]
    reach = -(-kernel // stride)
    down, across = rows + reach - 1, columns + reach - 1  # blocks
    x = x[:, : down * stride, : across * stride]
    x = jnp.pad(x, ((0, 0), (0, max(0, down * stride - height)), (0, max(0, across * stride - width)), (0, 0)))
    blocks = x.reshape(batch, down, stride, across, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    blocks = _numbers(blocks.reshape(batch * down * across, stride * stride * channels))  # bytes are quicker to move
    around = [((0, 0), (i, reach - 1 - i), (j, reach - 1 - j), (0, 0)) for i in range(reach) for j in range(reach)]
    seen = jnp.concatenate([jnp.pad(dy, pads) for pads in around], -1).reshape(batch * down * across, -1)
    dw = (seen.T @ blocks).reshape(reach, reach, filters, stride, stride, channels).transpose(0, 3, 1, 4, 5, 2)
    return dw.reshape(reach * stride, reach * stride, channels, filters)[:kernel, :kernel]


def _input_gradient(shape: tuple[int, ...], w: Array, dy: Array, stride: int) -> Array:
    """[B, H, W, C] for images of `shape` [H, W, C], in blocks of `stride` x `stride` pixels: an output saw `reach` x `reach`."""
    (height, width, channels), (batch, rows, columns, filters) = shape, dy.shape
    reach = -(-w.shape[0] // stride)
    down, across = rows + reach - 1, columns + reach - 1  # blocks
    beyond = reach * stride - w.shape[0]
    blocks = jnp.pad(w, ((0, beyond), (0, beyond), (0, 0), (0, 0)))
    blocks = blocks.reshape(reach, stride, reach, stride, channels, filters).transpose(0, 2, 1, 3, 4, 5)
    blocks = blocks.reshape(reach, reach, stride * stride * channels, filters)
    dx = jnp.zeros((batch, down, across, stride * stride * channels), dy.dtype)
    for i in range(reach):
        for j in range(reach):
            around = ((0, 0), (i, reach - 1 - i), (j, reach - 1 - j), (0, 0))
            dx += jnp.pad(dy @ blocks[i, j].T, around)
    dx = dx.reshape(batch, down, across, stride, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    dx = dx.reshape(batch, down * stride, across * stride, channels)[:, :height, :width]
    return jnp.pad(dx, ((0, 0), (0, height - dx.shape[1]), (0, width - dx.shape[2]), (0, 0)))
