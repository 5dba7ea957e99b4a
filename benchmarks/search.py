"""Search that answers questions: quality on a collection with judged questions, and the time over many pages.

The collection is a directory given on the command line, in the form of the Cranfield collection: `cran.all.1400.xml`,
`cran.qry.xml` and `cranqrel.trec.txt`. Without it, only times are measured. The peer is the bare index, asked for all
words and for any word.
"""

from __future__ import annotations

import math
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw

from benchmarks import ocr_search
from benchmarks.fixtures import opened
from benchmarks.queue import disk
from benchmarks.table import Fact, Goal, Row, at_most
from worker_service.base.embedding import BUNDLED, Embedder
from worker_service.jobs.search import SearchRequest
from worker_service.store.search import Meaning
from worker_service.store.search_query import any_of, fts_query, plain_operands

_DEPTH = 10
_QUESTIONS = 100
_QUERIES = 200
_SEED = 1
_VECTORS_A_PAGE = 6
_BARE = "SELECT rowid FROM page_text WHERE page_text MATCH ? ORDER BY bm25(page_text), rowid LIMIT 10"


@dataclass(frozen=True)
class Collection:
    texts: Mapping[int, str]
    questions: Mapping[int, str]
    judged: Mapping[int, Mapping[int, int]]
    """Relevance of documents by question."""


def measure(is_quick: bool, parts: Sequence[str] = (), *, corpus: Path | None = None) -> Iterator[Row | Fact]:
    with tempfile.TemporaryDirectory(dir=disk()) as place:
        if corpus is not None:
            yield from _quality(Path(place) / "collection.db", _read(corpus))
        yield from _times(Path(place) / "library.db", *((2_000, 1) if is_quick else (100_000, 5)))


def _quality(path: Path, collection: Collection) -> Iterator[Row]:
    store = opened(path, job_types=("ingest",))
    documents = [*collection.texts]
    for number, text in collection.texts.items():
        ocr_search.publish(store, f"/{number}.txt", number, [text])
    bare = ocr_search.read_only(path)

    def own(question: str) -> list[int]:
        return [documents[one.document_id - 1] for one in store.search.find(SearchRequest(question)).items]

    def index(expression: Callable[[str], str], question: str) -> list[int]:
        rows = bare.execute(_BARE, (expression(question),)).fetchall()
        return [documents[row[0] - 1] for row in rows]  # type: ignore[index,operator]

    ours = _ndcg(collection, own)
    for key, beside, expression in (
        ("all_words", "the bare index, all words", fts_query),
        ("any_word", "the bare index, any word", lambda question: any_of(plain_operands(question))),
    ):
        peer = _ndcg(collection, partial(index, expression))
        goal = Goal("≥ 0.38 nDCG@10", median_at_least=0.38) if key == "any_word" else Goal()
        what = f"{len(collection.questions)} questions to {len(documents):,} abstracts"
        yield Row(f"questions_{key}", what, beside, "nDCG@10", [ours], [peer], goal)
    bare.close()

    embedder = Embedder(BUNDLED)
    texts = list(collection.texts.values())
    _put_vectors(path, embedder.name, zip(range(1, len(texts) + 1), embedder.embed_pages(texts), strict=True))

    def hybrid(question: str) -> list[int]:
        meaning = Meaning(embedder.name, embedder.embed([question])[0])
        found = store.search.find(SearchRequest(question), lambda: meaning)
        return [documents[one.document_id - 1] for one in found.items]

    yield Row(
        "questions_meaning",
        f"the same, with vectors of the {BUNDLED} model",
        "the same by words alone",
        "nDCG@10",
        [_ndcg(collection, hybrid)],
        [ours],
        Goal("≥ 0.41 nDCG@10", median_at_least=0.41),
    )
    store.close()


def _put_vectors(path: Path, model: str, vectors: Iterable[tuple[int, bytes]]) -> None:
    connection = apsw.Connection(str(path))
    with connection:
        rows = ((model, result_id, each) for result_id, each in vectors)
        connection.executemany("INSERT INTO page_embedding (model, result_id, vectors) VALUES (?, ?, ?)", rows)
    connection.close()


def _times(path: Path, pages: int, repeats: int) -> Iterator[Row]:
    library = ocr_search.library(path, pages, _QUERIES, seed=_SEED)
    library.search_p95()
    turns = [(library.raw_p95(), library.search_p95()) for _ in range(repeats)]
    peer, own = ([turn[side] for turn in turns] for side in (0, 1))
    what = f"search over {pages:,} pages, {_QUERIES} queries, p95"
    yield Row("search", what, "the bare index", "CPU ms", own, peer, at_most(50, "CPU ms"))

    questions = [*_questions(random.Random(3), library.words)]
    any_words = [any_of(plain_operands(one)) for one in questions]
    turns = [
        (
            ocr_search.p95([ocr_search.took(partial(_ask_index, library, one)) for one in any_words]),
            ocr_search.p95([ocr_search.took(partial(_find, library, one)) for one in questions]),
        )
        for _ in range(repeats)
    ]
    peer, own = ([turn[side] for turn in turns] for side in (0, 1))
    what = f"questions of 8 words over {pages:,} pages, p95"
    yield Row("question_p95", what, "the bare index, any word", "CPU ms", own, peer, at_most(50, "CPU ms"))

    misspelled = [f"{word[:3]}q{word[3:]}" for word in library.words[300 : 300 + _QUESTIONS]]
    turns = [
        (
            ocr_search.p95([ocr_search.took(partial(_find, library, one)) for one in misspelled]),
            ocr_search.p95([ocr_search.took(partial(_find, library, one)) for one in questions]),
        )
        for _ in range(repeats)
    ]
    own, peer = ([turn[side] for turn in turns] for side in (0, 1))
    what = f"a misspelled word over {pages:,} pages, with a suggestion, p95"
    yield Row("suggestion_p95", what, "questions of 8 words", "CPU ms", own, peer, at_most(50, "CPU ms"))

    embedder = Embedder(BUNDLED)
    chance = random.Random(4)
    _put_vectors(
        path, embedder.name, ((number + 1, chance.randbytes(256 * _VECTORS_A_PAGE)) for number in range(pages))
    )

    def ask(question: str) -> object:
        meaning = Meaning(embedder.name, embedder.embed([question])[0])
        return library.store.search.find(SearchRequest(question), lambda: meaning)

    ask(questions[0])  # reads the vectors
    own = [ocr_search.p95([ocr_search.took(partial(ask, one)) for one in questions]) for _ in range(repeats)]
    what = f"questions of 8 words over {pages:,} pages, by words and meaning, p95"
    yield Row("question_meaning_p95", what, "by words alone", "CPU ms", own, peer, at_most(150, "CPU ms"))
    library.close()


def _find(library: ocr_search.Library, text: str) -> object:
    return library.store.search.find(SearchRequest(text))


def _ask_index(library: ocr_search.Library, expression: str) -> object:
    return library.raw.execute(_BARE, (expression,)).fetchall()


def _questions(chance: random.Random, words: Sequence[str]) -> Iterator[str]:
    """Yield questions of two words on most pages, two on many, two on some and two on few."""
    for _ in range(_QUESTIONS):
        groups = (words[:5], words[5:60], words[300:2_000], words[2_000:20_000])
        yield " ".join(word for group in groups for word in chance.sample(group, 2))


def _ndcg(collection: Collection, search: Callable[[str], Sequence[int]]) -> float:
    """Return the mean normalised discounted cumulative gain of the first ten pages."""
    return sum(
        _gain([collection.judged[number].get(one, 0) for one in search(question)])
        / _gain(sorted(collection.judged[number].values(), reverse=True))
        for number, question in collection.questions.items()
    ) / len(collection.questions)


def _gain(relevance: Sequence[int]) -> float:
    return sum(max(0, each) / math.log2(at + 2) for at, each in enumerate(relevance[:_DEPTH])) or 1e-9


def _read(corpus: Path) -> Collection:
    texts = {
        int(number): text
        for number, text in re.findall(
            r"<docno>(\d+)</docno>.*?<text>(.*?)</text>", (corpus / "cran.all.1400.xml").read_text(), re.DOTALL
        )
    }
    titles = re.findall(r"<num>\s*\d+</num>\s*<title>(.*?)</title>", (corpus / "cran.qry.xml").read_text(), re.DOTALL)
    judged: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for line in (corpus / "cranqrel.trec.txt").read_text().splitlines():
        number, _, document, relevance = map(int, line.split())
        judged[number][document] = relevance
    # The judgements number the questions by their place among all of them, not by `num`.
    questions = {number: " ".join(title.split()) for number, title in zip(sorted(judged), titles, strict=True)}
    return Collection(texts, questions, judged)
