"""examples/gdn_decode.py: on the file that it writes itself, and on one that it is given."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples/gdn_decode.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gdn_decode", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_decodes_from_a_file_and_agrees_with_numpy(example: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    example.write(path)
    for arguments in ([], [str(path)]):
        child = subprocess.run([sys.executable, EXAMPLE, *arguments], capture_output=True, text=True, check=False)
        assert child.returncode == 0, child.stderr
        model, tokens, agreement = child.stdout.splitlines()
        assert "qwen3next, 2 Gated DeltaNet layers" in model
        assert tokens.startswith("24 tokens in ")
        assert agreement.startswith("agrees with numpy within ")


@pytest.mark.parametrize("wrong", [1e-3, np.nan])
def test_its_check_notices_a_wrong_result(example: ModuleType, monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    decode = example.decode

    def decode_wrong(decoder: object, prompt: np.ndarray) -> np.ndarray:
        tokens = np.array(decode(decoder, prompt))
        if decoder._registry is not None:  # type: ignore[attr-defined]
            tokens[-1, 0] += wrong * np.abs(tokens).max()
        return tokens

    monkeypatch.setattr(example, "decode", decode_wrong)
    monkeypatch.setattr(sys, "argv", ["gdn_decode.py"])
    with pytest.raises(SystemExit, match="differs from numpy"):
        example.main()
