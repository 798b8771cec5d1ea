"""Cascades by their specs on a model from a folder, made of its own weights: fewer bits, fewer layers, two exits."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.test_folder_models import PROMPTS, llama, save

import surefoot
from surefoot.heads.exit import Exit, ExitConfig
from surefoot.heads.exit_files import save_exit
from surefoot.loader import open_target

SPECS = [
    "cascade:of=quantized/suffix",
    "cascade:of=quantized/layer_skip/ngram,inner_k=3/2,layer_skip.ratio=0.6",
    "two_exit:shallow={1},deep={3}",
    "two_exit:shallow={1},deep={3},steps=1,inner_k=2,confidence=0",
    "horizontal:of=early_exit/suffix,early_exit.path={1},lengths=2/4",
    "horizontal:of=cascade/early_exit,cascade.of=early_exit_deep/ngram,cascade.early_exit_deep.path={3},early_exit.path={1}",
    "dytc:of=early_exit/quantized/suffix,early_exit.path={1}",
]
TOKENS = 24


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUREFOOT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("cascades")
    save(root / "target", llama(5), 0, 300)
    ends = open_target(root / "target", "openvino").model.ends()
    for layer in (1, 3):
        save_exit(root / str(layer), Exit(ExitConfig("bare", layer), ends))
    return root


@pytest.fixture(scope="module")
def wanted(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    plain = surefoot.load(folder / "target", "none", "openvino")
    sampled = plain.generate(PROMPTS[0], max_tokens=TOKENS, temperature=0.8, seed=4).token_ids
    return {"greedy": [plain.generate(p, max_tokens=TOKENS).token_ids for p in PROMPTS], "sampled": [sampled]}


@pytest.mark.parametrize("spec", SPECS)
def test_no_token_changes(folder: Path, wanted, spec: str) -> None:
    text = spec.replace("{1}", str(folder / "1")).replace("{3}", str(folder / "3"))
    engine = surefoot.load(folder / "target", text, "openvino", controller="fixed")
    assert [engine.generate(p, max_tokens=TOKENS).token_ids for p in PROMPTS] == wanted["greedy"]
    assert [c.token_ids for c in engine.generate_batch(PROMPTS, max_tokens=TOKENS)] == wanted["greedy"]
    done = engine.generate(PROMPTS[0], max_tokens=TOKENS, temperature=0.8, seed=4)
    assert [done.token_ids] == wanted["sampled"]
    if "dytc" not in spec:  # which drafts only what it measures to pay
        assert done.stats.draft_tokens > 0
    if spec.startswith(("cascade", "two_exit")):
        levels = list(done.stats.levels.values())
        assert [level.proposed for level in levels[:-1]] == [level.reviewed for level in levels[1:]]
    engine.close()
