"""Vectors of text by meaning, from the static model in the wordllama wheel or an endpoint like OpenAI's.

Needs the extra `semantic`. A long text is divided into overlapping windows, each with a vector of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker_service.base.errors import PagemillError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

BUNDLED = "bundled"
_BUNDLED_FILES = ("tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors")
_VERSION = 2  # Part of `Embedder.name`. Raise it when windows change, so that all passages are embedded again.

WINDOW_WORDS, WINDOW_STEP = 60, 45
"""Length and distance of the windows, in words. Chosen on half of the Cranfield questions."""
_WORD = re.compile(r"\S+")
_TEXTS_PER_REQUEST = 64
_TIMEOUT_SECONDS = 30.0


class EmbeddingUnavailable(PagemillError, code="embedding_unavailable"): ...


def windows(text: str) -> list[tuple[int, int]]:
    """Return start and end, in characters, of the overlapping windows of a text."""
    words = [match.span() for match in _WORD.finditer(text)]
    if not words:
        return []
    overlap = WINDOW_WORDS - WINDOW_STEP
    first_words = range(0, max(1, len(words) - overlap), WINDOW_STEP)
    last_words = [min(first + WINDOW_WORDS, len(words)) - 1 for first in first_words]
    return [(words[first][0], words[last][1]) for first, last in zip(first_words, last_words, strict=True)]


def middle_word(window: int, window_count: int) -> int:
    """Return the number of words before the middle of a window, or before the new words of the last, short window."""
    is_last = window == window_count - 1
    return window * WINDOW_STEP + (WINDOW_WORDS - WINDOW_STEP if is_last else WINDOW_WORDS // 2)


def count_words(text: str) -> int:
    return len(_WORD.findall(text))


def why_missing() -> str | None:
    """Return what the bundled model lacks on this machine, or None."""
    for package in ("numpy", "safetensors", "tokenizers", "wordllama"):
        if find_spec(package) is None:
            return f"the package {package} is not installed"
    return None


class Embedder:
    """Turns texts into vectors of length 1. `setting` is `bundled` or the URL of an endpoint."""

    def __init__(self, setting: str, model: str = "", key: str = "", passage_edition: str = "") -> None:
        # The products are small, so further threads would only spin. numpy reads this when it is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self._url = "" if setting == BUNDLED else setting
        self._key = key
        self.model = model if self._url else Path(_BUNDLED_FILES[1]).stem
        self.name = f"{self.model}/{_VERSION}/{passage_edition}"
        self._tokenizer_and_weights: tuple[Any, Vectors] | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        embed_part = self._request_embeddings if self._url else self._mean_of_words
        begins = range(0, len(texts), _TEXTS_PER_REQUEST)
        parts = [texts[begin : begin + _TEXTS_PER_REQUEST] for begin in begins]
        return normalised(np.concatenate([embed_part(part) for part in parts]))

    def embed_passages(self, texts: Sequence[str]) -> list[bytes]:
        """Return, for each text, the mean vector and the vectors of its windows, packed; empty without words."""
        import numpy as np

        windows_by_text = [[text[begin:end] for begin, end in windows(text)] for text in texts]
        all_windows = list(chain.from_iterable(windows_by_text))
        vectors = self.embed(all_windows) if all_windows else np.zeros((0, 1), np.float32)
        ends = np.cumsum([len(text_windows) for text_windows in windows_by_text])
        return [packed(vectors[end - len(own) : end]) for own, end in zip(windows_by_text, ends, strict=True)]

    def _mean_of_words(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        if self._tokenizer_and_weights is None:
            self._tokenizer_and_weights = _load_bundled_model()
        tokenizer, weights = self._tokenizer_and_weights
        means = []
        for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
            has_tokens = bool(encoding.ids)
            mean = weights[encoding.ids].mean(0, dtype=np.float32) if has_tokens else np.zeros(weights.shape[1])
            means.append(mean.astype(np.float32))
        return np.array(means)

    def _request_embeddings(self, texts: Sequence[str]) -> Vectors:
        import urllib.request  # slow to import

        import numpy as np

        body = json.dumps({"model": self.model, "input": list(texts)}).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(f"{self._url.rstrip('/')}/embeddings", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                items = sorted(json.load(answer)["data"], key=lambda item: item["index"])
            vectors: Vectors = np.array([item["embedding"] for item in items], np.float32)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EmbeddingUnavailable(f"{self._url} returned no embeddings: {error}", "check the server") from error
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise EmbeddingUnavailable(f"{self._url} returned {len(vectors)} embeddings for {len(texts)} texts")
        return vectors


def _load_bundled_model() -> tuple[Any, Vectors]:
    if (reason := why_missing()) is not None:
        raise EmbeddingUnavailable(reason, "pip install 'pagemill[semantic]'")
    spec = find_spec("wordllama")  # only its files are used, not its code
    assert spec is not None
    assert spec.origin is not None
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    tokenizer, weights = (Path(spec.origin).parent / name for name in _BUNDLED_FILES)
    return Tokenizer.from_file(str(tokenizer)), load_file(weights)["embedding.weight"]


def normalised(vectors: Vectors) -> Vectors:
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def packed(window_vectors: Vectors) -> bytes:
    """Return the mean of the vectors and the vectors, each scaled to 8-bit numbers."""
    import numpy as np

    if not len(window_vectors):
        return b""
    rows = np.vstack([window_vectors.mean(0, keepdims=True), window_vectors])
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return np.round(rows * (127 / np.where(largest > 0, largest, 1))).astype(np.int8).tobytes()
