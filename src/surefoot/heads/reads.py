"""What a head needs of its target, told from its files before the target is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadRequest
from .eagle3 import default_taps
from .files import peek
from .recognise import recognise


@dataclass(frozen=True, slots=True)
class Reads:
    """``kind``: one of :data:`~.recognise.KINDS`. ``cut``: the layer behind which the target is left, of an early exit."""

    kind: str
    config: dict[str, Any]
    cut: int | None = None

    def taps(self, n_layers: int) -> tuple[int, ...]:
        """Activations that it reads of a target of so many layers."""
        if self.kind == "hydra":
            return tuple(self.config.get("taps", ()))
        if self.kind == "eagle3":
            found = self.config.get("eagle_aux_hidden_state_layer_ids")
            return tuple(found) if isinstance(found, list) and found else default_taps(n_layers)
        if self.kind in ("exit", "distilled"):
            return ()
        return (n_layers + 1,)


def reads(folder: Path, *, layer: int | None = None, pickle: bool = False) -> Reads:
    """``layer``: where an early exit leaves the target, if its file does not say."""
    config, names = peek(folder, pickle=pickle)
    kind = recognise(Path(folder), config, names, None)
    if kind != "exit":
        return Reads(kind, config)
    cut = layer if layer is not None else config.get("exit_layer")
    if not isinstance(cut, int) or cut < 1:
        raise BadRequest(f"{folder}: the head's file does not name its exit layer; give it as layer=")
    return Reads(kind, config, cut)
