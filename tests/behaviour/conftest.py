"""Tiny models that the behaviour tests share, each made once: those of the backend contract, by their names there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract.conftest import FACTORIES, Backend


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backend]:
    """``backends("llama").target`` and so on; see ``FACTORIES`` for the names."""
    made: dict[str, Backend] = {}

    def get(name: str) -> Backend:
        if name not in made:
            made[name] = FACTORIES[name](tmp_path_factory.mktemp(name))
        return made[name]

    return get
