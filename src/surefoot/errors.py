"""Typed errors. Each message is one line and names the fix; the CLI prints it and exits with status 2."""

from __future__ import annotations


class SurefootError(Exception):
    """Base of every error that Surefoot raises on purpose."""


class BadRequest(SurefootError, ValueError):
    """A request option, prompt or argument is out of range, unknown or contradictory."""


class BadDraft(SurefootError, ValueError):
    """A drafter proposed something that is not a valid tree (order, vocabulary, size)."""


class VocabMismatch(SurefootError, ValueError):
    """Draft and target do not share a vocabulary."""


class Unsupported(SurefootError, RuntimeError):
    """The backend, model or drafter cannot do what was asked."""


class BackendError(SurefootError, RuntimeError):
    """The backend failed (out of memory, disk full, broken model file)."""


class ModelNotFound(SurefootError, LookupError):
    """A model reference resolves to nothing: no such file, folder, packaged name or reachable hub id."""
