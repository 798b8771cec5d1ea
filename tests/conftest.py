"""What every test shares: one thread, seeded numbers, reproducible property tests, no GPU tests without a GPU."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

# Before torch and tokenizers are imported: forked tokenizers warn, and tiny tensors are slower on many threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

settings.register_profile(
    "surefoot",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("surefoot")

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything under tests/gpu, and skip it where there is no CUDA device."""
    skip = None if torch.cuda.is_available() else pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker("gpu")
            if skip is not None:
                item.add_marker(skip)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers in every run, others in every test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
