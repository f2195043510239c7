"""The policy file: readable by any safetensors reader, and any damage to it shows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shoal.core.errors import BadInput
from shoal.run.policy import load_policy, save_policy

META = {"env": "CartPole-v1", "widths": [64, 64], "trap": '"sha256": "' + "0" * 64 + '"'}


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "policy.safetensors"
    save_policy(path, {"w": np.arange(5, dtype=np.float32), "sha256": np.zeros((2, 0)), "s": np.float32(3)}, META)
    return path


def test_arrays_and_meta_come_back(tmp_path: Path) -> None:
    arrays, meta = load_policy(saved(tmp_path))
    assert meta == META
    assert arrays["w"].tolist() == [0, 1, 2, 3, 4] and arrays["sha256"].shape == (2, 0) and arrays["s"].shape == ()


def test_others_can_read_it(tmp_path: Path) -> None:
    assert load_file(saved(tmp_path))["w"].tolist() == [0, 1, 2, 3, 4]


def test_every_flipped_bit_and_truncation_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    bits = random.Random(1)
    damaged = [whole[:i] + bytes([whole[i] ^ 1 << bits.randrange(8)]) + whole[i + 1 :] for i in range(len(whole))]
    for data in damaged + [whole[:length] for length in range(0, len(whole), 5)]:
        path.write_bytes(data)
        with pytest.raises(BadInput, match=r"policy\.safetensors' cannot be used"):
            load_policy(path)


def test_a_missing_file_and_a_foreign_one_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read policy .*No such file"):
        load_policy(tmp_path / "none.safetensors")
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(BadInput, match="it has no checksum"):
        load_policy(foreign)
