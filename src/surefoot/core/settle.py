"""After a pass: each row's draft is verified, and what the verdict keeps is committed to the row.

What the options make fail (no token is possible, a processor raises) ends its own row, at the token at which plain decoding
would have ended it; the other rows of the pass go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import BadRequest
from .law import Best
from .laws import Argmaxes, Laws
from .logprobs import Logprob, logprob
from .params import SamplingParams
from .parts import Part
from .protocols import Verdict
from .stats import StepTrace
from .trace import record
from .tree import PENDING
from .verify import greedy, verify


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass settled for one part. ``verdict`` is None where the row was only prefilled, or failed."""

    verdict: Verdict | None
    path: list[int]
    """Nodes of the part whose KV is committed."""
    kept: int = 0
    """Tokens that the row kept."""
    trace: StepTrace | None = None


class Settler:
    """``names``: source numbers to drafters. ``known``: token ids from here on stand for nothing."""

    def __init__(self, names: Mapping[int, str], known: int) -> None:
        self._names = names
        self._known = known

    def settle(self, parts: Sequence[Part], logits: Tensor) -> list[Outcome]:
        """Verify and commit each part; ``logits`` [R, V] are those of the scored nodes, in order."""
        outcomes: list[Outcome] = []
        begin = 0
        for part in parts:
            own = logits[begin : begin + part.scored]
            begin += part.scored
            lead = len(part.lead)
            if part.whole:
                self._score_prompt(part, own)
                own = own[lead:]
            if not part.wanted:
                outcomes.append(Outcome(None, list(range(len(part.tree)))))
                continue
            try:
                outcomes.append(self._one(part, own))
            except BadRequest as error:  # the request's own fault; its neighbours go on
                part.row.fail(error)
                outcomes.append(Outcome(None, list(range(lead + 1))))
        return outcomes

    def _one(self, part: Part, logits: Tensor) -> Outcome:
        """Verify and commit one part; ``logits`` [N, V] of its tree. Only nodes that the verifier visits are looked at."""
        row, tree = part.row, part.tree
        rule = row.rule(tree.q is not None)
        trace = None
        told = row.logprobs is not None or row.stats.trace is not None or row.laws is not None
        if rule == "greedy" and row.state is None and not told:
            verdict = greedy(tree, Best(logits[:, : self._known]))
            kept = self._commit(part, verdict)
        else:
            laws = Laws(logits, row.params, row.state, tree.tokens.tolist(), tree.parents.tolist(), self._known, keep=told)
            failed: BadRequest | None = None
            try:
                if rule == "greedy":
                    verdict = greedy(tree, Argmaxes(laws))
                else:
                    verdict = verify(tree, laws, row.noise, rule, len(row.tokens), row.turn)
            except BadRequest as error:
                # what was accepted before stays, as in plain decoding, and may have ended the request already
                reached = laws.reached()
                if not reached:
                    raise
                verdict, failed = Verdict(reached, PENDING), error
            chosen = len(verdict.path) + (failed is None)
            # all three look at the states before they are committed
            logprobs = self._logprobs(part, laws, verdict, chosen)
            own = [] if row.laws is None else [laws.told(node) for node in (0, *verdict.path)[:chosen]]
            traced = row.stats.trace is not None
            trace = record(row, tree, laws, verdict, part.drafter, self._names) if traced else None
            kept = self._commit(part, verdict, chosen)
            if row.logprobs is not None:
                row.logprobs += logprobs[:kept]
            if row.laws is not None:
                row.laws += own[:kept]
            if failed is not None:
                row.fail(failed)
        # the last kept token stays pending; its KV, if any, is not committed
        lead = len(part.lead)
        path = [*range(lead + 1), *(lead + i for i in verdict.path[: kept - 1])]
        return Outcome(verdict, path, kept, None if trace is None else trace.kept_first(kept))

    def _logprobs(self, part: Part, laws: Laws, verdict: Verdict, chosen: int) -> list[Logprob]:
        """Of the first ``chosen`` of the path and the target's own token."""
        most = part.row.params.logprobs
        if most is None:
            return []
        nodes = (0, *verdict.path)
        return [logprob(laws, nodes[i], token, most) for i, token in enumerate(_chosen(part, verdict)[:chosen])]

    def _score_prompt(self, part: Part, logits: Tensor) -> None:
        """Log-probabilities of the prompt tokens that follow the part's pending ones; ``logits`` [n, V]."""
        row, most = part.row, part.row.params.logprobs
        assert row.prompt_logprobs is not None
        assert most is not None
        laws = Laws(logits, SamplingParams(), known=self._known)
        following = row.tokens[part.slot.length + 1 : min(part.slot.length + 1 + logits.shape[0], row.n_prompt)]
        row.prompt_logprobs += [logprob(laws, node, token, most) for node, token in enumerate(following)]

    def _commit(self, part: Part, verdict: Verdict, chosen: int | None = None) -> int:
        """Commit a verdict, or the first ``chosen`` tokens of it, to its row and count what was kept."""
        row = part.row
        sources = part.tree.source.tolist()
        origin = [*(sources[i] for i in verdict.path), PENDING]
        kept = row.commit(_chosen(part, verdict)[:chosen], origin[:chosen])
        row.stats.add_pass([self._names[s] for s in sources[1:]], [self._names[s] for s in origin[:kept]])
        return kept


def _chosen(part: Part, verdict: Verdict) -> list[int]:
    """Tokens of the accepted path and the target's own."""
    tokens = part.tree.tokens.tolist()
    return [*(tokens[i] for i in verdict.path), verdict.token]
