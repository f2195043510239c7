"""Ahead-of-time compilation that does not trace a function again in every run.

JAX keeps compiled code on disk but finds it by the lowered program, and tracing and lowering an update takes half a second.
This module also keeps the lowered program (StableHLO, from `jax.export`), under a key that needs no trace: Shoal's source, the
versions of the numerical packages, JAX's settings, the algorithm with its settings, and the shapes. Any difference gives
another key, and an unusable file counts as missing: then the function is traced. Both ways compile the same program, and so
give the same bits.

A file is a header in JSON and the bytes of the program; nothing in it is unpickled or run as Python. Each setting has files of
its own, so the first process that adds one removes those that were not used for the longest time, here and in JAX's folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import os
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from shoal.process.device import cache_folder
from shoal.process.memory import release

COMPUTES = ("jax", "jaxlib", "optax", "numpy")  # packages whose versions affect the traced program
TYPES_OF = ("shoal.", "optax.")  # packages whose named tuples a program may return
PLAIN = (bool, int, float, str, bytes, type(None), enum.Enum)
CACHE = "jax_compilation_cache_dir"  # the one JAX setting that does not affect the program
LIMITS = {"programs": 1 << 28, "xla": 1 << 31}  # bytes of the folders in the cache
KEPT = 8  # compiled functions that equal calls of this process share

_compiled: dict[str, Callable[..., Any]] = {}


class Unkept(Exception):
    """A value that no key can identify or no file can hold: the function is traced in every run."""


class Header(msgspec.Struct, frozen=True):
    """The data needed to call a program, besides its bytes."""

    name: str
    sha256: str  # of the other fields and the bytes
    convention: int  # JAX's version number of the calling convention
    inputs: list[tuple[list[int], str]]  # shape and dtype
    outputs: list[tuple[list[int], str]]
    result: Any  # the structure around the outputs


def compile_ahead(function: Callable[..., Any], owner: Any, *args: Any) -> Callable[..., Any]:
    """`partial(function, owner)`, compiled for arguments with the shapes of `args`, which may be arrays or shape structures."""
    leaves, tree = jax.tree.flatten(args)
    try:
        key = _key(function, owner, leaves, str(tree))
    except Unkept:
        return _called(_lowered(function, owner, leaves, tree).compile(), None)
    found = _compiled.get(key)
    if found is None:
        while len(_compiled) >= KEPT:
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread removes one too
                _compiled.pop(next(iter(_compiled)))
        folder = cache_folder()
        path = None if folder is None else folder / "programs" / f"{key}.shlo"
        found = _compiled[key] = _read_or_traced(function, owner, leaves, tree, path)
    return found


def forget() -> None:
    """Drop the compiled functions that equal calls share, as `jax.clear_caches` drops JAX's own."""
    _compiled.clear()


def _read_or_traced(function: Any, owner: Any, leaves: list[Any], tree: Any, path: Path | None) -> Callable[..., Any]:
    found = None if path is None else _read(path)
    if found is not None and path is not None:
        try:
            return _rebuilt(*found, leaves)
        except Exception:  # an edited file, or another version of JAX: tracing the function shows any real error
            with contextlib.suppress(OSError):
                path.unlink()
    release()
    try:
        found = _exported(function, owner, leaves, tree)
        release()
        # Rebuilt even if it was just exported, so that the name and everything else in JAX's cache key stay the same.
        compiled = _rebuilt(*found, leaves)
    except (Unkept, ValueError, NotImplementedError, TypeError):  # JAX does not export every effect
        return _called(_lowered(function, owner, leaves, tree).compile(), None)
    if path is not None:
        _write(path, *found)
    release()
    return compiled


def _rebuilt(header: Header, data: bytes, leaves: list[Any]) -> Callable[..., Any]:
    """The compiled function of a file's contents. Raises an exception of any kind if they do not fit together."""
    result = _decoded(header.result)
    if len(jax.tree.leaves(result)) != len(header.outputs):
        raise Unkept(header.name)
    return _called(_lowered_program(_program(header, data), leaves).compile(), jax.tree.structure(result))


def _called(flat: Any, result: Any) -> Callable[..., Any]:
    """A compiled function of leaves as a function of trees; without `result`, `flat` already takes trees."""
    if result is None:
        return flat  # type: ignore[no-any-return]
    return lambda *args: jax.tree.unflatten(result, flat(*jax.tree.leaves(args)))


def _lowered(function: Any, owner: Any, leaves: list[Any], tree: Any) -> Any:
    return jax.jit(lambda *args: function(owner, *args)).lower(*jax.tree.unflatten(tree, leaves))


def _lowered_program(program: Any, leaves: list[Any]) -> Any:
    def call(*leaves: Any) -> Any:
        return program.call(*leaves)

    call.__name__ = program.fun_name
    return jax.jit(call, keep_unused=True).lower(*leaves)


def _exported(function: Any, owner: Any, leaves: list[Any], tree: Any) -> tuple[Header, bytes]:
    """The lowered program of leaves. Raises `Unkept` if a header cannot describe how to call it."""
    structures: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        found, structure = jax.tree.flatten(function(owner, *jax.tree.unflatten(tree, leaves)))
        structures.append(structure)
        return found

    program = jax.export.export(jax.jit(flat, keep_unused=True))(*leaves)
    plain = not (program.ordered_effects or program.unordered_effects or program.uses_global_constants)
    whole = tuple(program.module_kept_var_idx) == tuple(range(len(leaves)))
    if not (plain and whole and program.nr_devices == 1):
        raise Unkept(function.__name__)

    def described(avals: Any) -> list[tuple[list[int], str]]:
        return [(list(aval.shape), str(aval.dtype)) for aval in avals]

    data = bytes(program.mlir_module_serialized)
    header = Header(
        function.__name__,
        "",
        program.calling_convention_version,
        described(program.in_avals),
        described(program.out_avals),
        _encoded(jax.tree.unflatten(structures[-1], [0] * len(program.out_avals))),
    )
    return msgspec.structs.replace(header, sha256=_digest(header, data)), data


def _digest(header: Header, data: bytes) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(header, sha256="")) + b"\n" + data).hexdigest()


# The key.


def _key(function: Any, owner: Any, leaves: list[Any], tree: str) -> str:
    shapes = [(*np.shape(leaf), str(leaf.dtype), bool(getattr(leaf, "weak_type", False))) for leaf in leaves]
    values = jax.config.values.items()
    settings = sorted((name, repr(getattr(jax.config, name, value))) for name, value in values if name != CACHE)
    parts = (_world(), settings, _named(function), _identity(owner), shapes, tree)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@cache
def _world() -> str:
    """Everything that affects tracing and cannot change within this process."""
    device = jax.devices()[0]
    return repr(
        (
            _source_hash(),
            [version(name) for name in COMPUTES],
            platform.python_version(),
            (device.platform, device.device_kind),
            os.environ.get("XLA_FLAGS", ""),
        )
    )


def _source_hash() -> str:
    root = Path(__file__).parent.parent
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        whole.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def _named(thing: Any) -> str:
    """The import path of a function or class of Shoal, whose source is part of the key."""
    name = f"{thing.__module__}.{thing.__qualname__}"
    if not name.startswith("shoal.") or "<" in name:
        raise Unkept(name)
    return name


def _identity(thing: Any) -> Any:
    """A value that is equal for two objects if and only if they compute the same."""
    if isinstance(thing, PLAIN):
        return (type(thing).__name__, repr(thing))
    if isinstance(thing, Mapping):
        return {repr(k): _identity(v) for k, v in thing.items()}
    if isinstance(thing, tuple | list) and type(thing) in (tuple, list):
        return [_identity(item) for item in thing]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        names = [field.name for field in dataclasses.fields(thing)]
    elif isinstance(thing, msgspec.Struct):
        names = list(thing.__struct_fields__)
    elif isinstance(thing, tuple) and hasattr(thing, "_fields"):
        names = list(thing._fields)
    else:
        raise Unkept(repr(thing))
    return (_named(type(thing)), [(name, _identity(getattr(thing, name))) for name in names])


# The file.


def _read(path: Path) -> tuple[Header, bytes] | None:
    """The header and bytes of a file; None if it is missing or damaged."""
    try:
        head, _, data = path.read_bytes().partition(b"\n")
        header = msgspec.json.decode(head, type=Header)
    except (OSError, msgspec.DecodeError):
        return None
    if header.sha256 != _digest(header, data):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # it was used just now
    return header, data


def _program(header: Header, data: bytes) -> Any:
    def avals(described: list[tuple[list[int], str]]) -> tuple[Any, ...]:
        return tuple(jax.core.ShapedArray(tuple(shape), np.dtype(dtype)) for shape, dtype in described)

    inputs, outputs = avals(header.inputs), avals(header.outputs)
    free_in, free_out = (None,) * len(inputs), (None,) * len(outputs)
    return jax.export.Exported(
        fun_name=header.name,
        in_tree=jax.tree.structure(((0,) * len(inputs), {})),
        in_avals=inputs,
        out_tree=jax.tree.structure([0] * len(outputs)),
        out_avals=outputs,
        _has_named_shardings=True,
        _in_named_shardings=free_in,
        _out_named_shardings=free_out,
        in_shardings_hlo=free_in,
        out_shardings_hlo=free_out,
        nr_devices=1,
        platforms=(jax.devices()[0].platform,),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=data,
        calling_convention_version=header.convention,
        module_kept_var_idx=tuple(range(len(inputs))),
        uses_global_constants=False,
        _get_vjp=None,
    )


def _write(path: Path, header: Header, data: bytes) -> None:
    """Write atomically. If the folder cannot be written, later runs trace again, just as they compile again."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(header) + b"\n" + data)
        temporary.replace(path)
        _prune_once(path.parent.parent)


@cache
def _prune_once(folder: Path) -> None:
    """Prune the cache, once per process: a run adds only a few files."""
    for name, most in LIMITS.items():
        prune(folder / name, most)


def prune(folder: Path, most: int) -> None:
    """Remove the files that were not used for the longest time, until at most `most` bytes are left."""
    found: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has removed it
                about = entry.stat()
                found.append((max(about.st_atime, about.st_mtime), about.st_size, entry.path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        left -= size


def _encoded(tree: Any) -> Any:
    """A structure of plain containers and named tuples, encoded for JSON."""
    if tree is None or (type(tree) is int and tree == 0):
        return tree
    if type(tree) is dict and all(type(key) is str for key in tree):
        return {"dict": {key: _encoded(part) for key, part in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_encoded(part) for part in tree]}
    if isinstance(tree, tuple) and hasattr(tree, "_fields") and type(tree).__module__.startswith(TYPES_OF):
        return {f"{type(tree).__module__}:{type(tree).__qualname__}": [_encoded(part) for part in tree]}
    raise Unkept(repr(tree))


def _decoded(code: Any) -> Any:
    if code is None or code == 0:
        return code
    [(name, parts)] = code.items()
    if name == "dict":
        return {key: _decoded(part) for key, part in parts.items()}
    inside = [_decoded(part) for part in parts]
    if name in ("list", "tuple"):
        return inside if name == "list" else tuple(inside)
    module, _, kind = name.partition(":")
    found = getattr(sys.modules.get(module), kind, None)
    if not module.startswith(TYPES_OF) or not (isinstance(found, type) and issubclass(found, tuple)):
        raise Unkept(name)
    return found(*inside)
