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


class Layer(NamedTuple):
    filters: int
    kernel: int
    stride: int


def parse(text: str) -> Layer:
    """`32x8/4`: 32 filters of 8 by 8, 4 apart."""
    match = re.fullmatch(r"(\d+)x(\d+)/(\d+)", text)
    layer = Layer(*map(int, match.groups())) if match else None
    if layer is None or min(layer) < 1:
        raise BadInput(f"convolution {text!r} is not filters x kernel / stride, such as 32x8/4 (whole numbers from 1)")
    return layer


def flat_size(shape: tuple[int, ...], conv: tuple[str, ...]) -> int:
    """How many numbers an image of this shape leaves behind. Refuses layers that its size cannot feed."""
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
    x = x.astype(jnp.float32) * (1.0 / 255.0) if x.dtype == jnp.uint8 else x
    for i, text in enumerate(conv):
        layer, stride = params[f"conv{i}"], parse(text).stride
        x = jax.lax.conv_general_dilated(
            x, layer["w"], (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + layer["b"])
    return x.reshape(*leading, -1)
