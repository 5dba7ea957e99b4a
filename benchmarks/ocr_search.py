"""A library of many pages and fixed queries. The words are made up, with a realistic frequency distribution."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import quantiles

import apsw

from benchmarks.fixtures import WORKER, opened
from worker_service.jobs.attempts import Completion
from worker_service.jobs.documents import DocumentFacts, DocumentRequest, PageResult
from worker_service.jobs.job import NewJob
from worker_service.jobs.search import SearchRequest
from worker_service.store.store import Store

PAGES_A_DOCUMENT = 500
_AT_ONCE = 250
_WORDS_A_PAGE = 250
_VOCABULARY = 40_000
_COMMON = 60
"""Number of common words, after the first five: each occurs on a third of the pages or more."""
_SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe ri so tu va we xi yo zu bra cle dri flo gru pla ste tri".split()
_RAW = """
SELECT rowid, bm25(page_text), snippet(page_text, 0, '[', ']', '…', 24)
  FROM page_text WHERE page_text MATCH ? ORDER BY rank LIMIT 20
"""


@dataclass(frozen=True, slots=True)
class Library:
    store: Store
    raw: apsw.Connection
    queries: Sequence[str]
    words: Sequence[str]
    """The vocabulary, most frequent words first."""

    def search_p95(self) -> float:
        """Milliseconds."""
        return p95([took(partial(self.store.search.find, SearchRequest(one))) for one in self.queries])

    def raw_p95(self) -> float:
        """Milliseconds of the index alone: ranks every hit, ignores owners."""
        return p95([took(partial(self._ask_index, one)) for one in self.queries])

    def _ask_index(self, query: str) -> object:
        return self.raw.execute(_RAW, (_as_index_says(query),)).fetchall()

    def close(self) -> None:
        self.raw.close()
        self.store.close()


def library(path: Path, pages: int, queries: int, *, seed: int) -> Library:
    """Write a library document by document, as a worker does."""
    store = opened(path, job_types=("ingest",))
    chance = random.Random(seed)
    words = _vocabulary(chance)
    weights = list(accumulate(1 / (rank + 2.7) for rank in range(1, len(words) + 1)))
    for first in range(0, pages, PAGES_A_DOCUMENT):
        count = min(PAGES_A_DOCUMENT, pages - first)
        texts = [" ".join(chance.choices(words, cum_weights=weights, k=_WORDS_A_PAGE)) for _ in range(count)]
        publish(store, f"/library/{first}.pdf", first, texts)
    return Library(store, read_only(path), list(_queries(chance, words, queries)), words)


def read_only(path: Path) -> apsw.Connection:
    return apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)


def publish(store: Store, name: str, first: int, texts: Sequence[str]) -> None:
    wish = DocumentRequest(name, name.rpartition("/")[2], content=f"{first:064}", settings='{"reader":"bench"}')
    store.intake.enqueue(NewJob("ingest", payload=json.dumps({"path": name}), document=wish))
    [job] = store.leases.claim(WORKER, 1)
    results = [(job.lease, PageResult(at, f"{first + at}", text, "layer")) for at, text in enumerate(texts, 1)]
    for begin in range(0, len(results), _AT_ONCE):
        assert store.attempts.save_pages(results[begin : begin + _AT_ONCE]) == []
    done = Completion(job.lease, document=DocumentFacts(pages=len(texts)), publishes=True)
    assert store.leases.complete_many([done]) == []


def _queries(chance: random.Random, words: Sequence[str], count: int) -> Iterator[str]:
    """Yield queries: a quarter with a common word, the others with rarer ones (a few hundred or thousand pages)."""
    for at in range(count):
        one, other = chance.sample(words[300:5_000], 2)
        if at % 4 == 0:
            frequent, another = chance.sample(words[5:_COMMON], 2)
            yield chance.choice([frequent, f"{frequent} {one}", f"{one} OR {frequent}", f"{frequent} NEAR {another}"])
        else:
            yield chance.choice([one, f"{one} {other}", f"{one} OR {other}", f"{one[:5]}*"])


def _vocabulary(chance: random.Random) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < _VOCABULARY:
        found["".join(chance.choices(_SYLLABLES, k=chance.choice((2, 3, 3, 4, 4, 5))))] = None
    return list(found)


def _as_index_says(query: str) -> str:
    one, near, other = query.partition(" NEAR ")
    return f"NEAR({one} {other}, 10)" if near else query


def took(work: Callable[[], object]) -> float:
    """Return milliseconds of CPU: the time it takes on a machine that does nothing else."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) * 1000


def p95(figures: Sequence[float]) -> float:
    return quantiles(figures, n=20)[-1]
