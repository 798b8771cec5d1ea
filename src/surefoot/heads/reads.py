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
            return self._listed("taps")
        if self.kind == "eagle3":
            return self._listed("eagle_aux_hidden_state_layer_ids") or default_taps(n_layers)
        if self.kind in ("exit", "distilled"):
            return ()
        return (n_layers + 1,)

    def _listed(self, name: str) -> tuple[int, ...]:
        """Layers that the config lists; none where it lists none, or nonsense, which whoever opens the head refuses."""
        found = self.config.get(name)
        fine = isinstance(found, list) and all(isinstance(t, int) and t >= 0 for t in found)
        return tuple(found) if fine and found else ()


def reads(folder: Path, *, layer: int | None = None, pickle: bool = False) -> Reads:
    """``layer``: where an early exit leaves the target, if its file does not say."""
    config, names = peek(folder, pickle=pickle)
    kind = recognise(Path(folder), config, names, None)
    if kind != "exit":
        return Reads(kind, config)
    cut = layer if layer is not None else config.get("exit_layer")
    if not isinstance(cut, int) or isinstance(cut, bool) or cut < 1:
        raise BadRequest(f"{folder}: the head's file does not name its exit layer; give it as layer=")
    return Reads(kind, config, cut)
