"""The public names, and that importing the package costs little."""

from __future__ import annotations

import subprocess
import sys

import surefoot

NAMES = [
    "BackendError",
    "BadDraft",
    "BadRequest",
    "Completion",
    "Engine",
    "ModelNotFound",
    "Piece",
    "SamplingParams",
    "SurefootError",
    "Unsupported",
    "Usage",
    "VocabMismatch",
    "__version__",
    "load",
]


def test_public_names() -> None:
    assert sorted(surefoot.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(surefoot, name) is not None
    assert callable(surefoot.load)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, surefoot; print([m for m in ('torch', 'openvino', 'transformers', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
