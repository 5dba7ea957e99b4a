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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw

from benchmarks import ocr_search
from benchmarks.fixtures import opened
from benchmarks.queue import disk, in_turns
from benchmarks.table import Fact, Goal, Row, at_most
from tests.kit.embedding import embed_all
from worker_service.base.embedding import BUNDLED, Embedder
from worker_service.jobs.search import SearchRequest
from worker_service.store.search import Meaning
from worker_service.store.search_query import any_of, fts_query, plain_operands

_DEPTH = 10
_QUESTIONS = 100
_QUERIES = 200
_SEED = 1
_PASSAGES_A_PAGE, _VECTORS_A_PASSAGE = 2, 4
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
    embed_all(store, embedder)

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


def _put_vectors(path: Path, model: str, pages: int) -> None:
    """Give each page two passages with random vectors."""
    chance = random.Random(4)
    connection = apsw.Connection(str(path))
    with connection:
        for page in range(pages):
            document, number = divmod(page, ocr_search.PAGES_A_DOCUMENT)
            for half in range(_PASSAGES_A_PAGE):
                vectors = chance.randbytes(256 * _VECTORS_A_PASSAGE)
                row = (model, f"{page} {half}", vectors)
                connection.execute("INSERT INTO passage_embedding (model, digest, vectors) VALUES (?, ?, ?)", row)
                place = (connection.last_insert_rowid(), document + 1, 1, 2 * number + half, number + 1, 0)
                connection.execute("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?)", place)
    connection.close()


def _times(path: Path, pages: int, repeats: int) -> Iterator[Row]:
    library = ocr_search.library(path, pages, _QUERIES, seed=_SEED)

    def row(key: str, what: str, own: Callable[[], float], beside: str, peer: Callable[[], float], most: int) -> Row:
        peers, ours = in_turns(repeats, peer, own)
        return Row(key, f"{what}, p95", beside, "CPU ms", ours, peers, at_most(most, "CPU ms"))

    what = f"search over {pages:,} pages, {_QUERIES} queries"
    yield row("search", what, library.search_p95, "the bare index", library.raw_p95, 50)

    questions = [*_questions(random.Random(3), library.words)]
    by_words = partial(_p95, partial(_find, library), questions)
    by_index = partial(_p95, partial(_ask_index, library), [any_of(plain_operands(one)) for one in questions])
    what = f"questions of 8 words over {pages:,} pages"
    yield row("question_p95", what, by_words, "the bare index, any word", by_index, 50)

    misspelled = [f"{word[:3]}q{word[3:]}" for word in library.words[300 : 300 + _QUESTIONS]]
    suggestions = partial(_p95, partial(_find, library), misspelled)
    what_else = f"a misspelled word over {pages:,} pages, with a suggestion"
    yield row("suggestion_p95", what_else, suggestions, "questions of 8 words", by_words, 50)

    embedder = Embedder(BUNDLED)
    _put_vectors(path, embedder.name, pages)

    def ask(question: str) -> object:
        meaning = Meaning(embedder.name, embedder.embed([question])[0])
        return library.store.search.find(SearchRequest(question), lambda: meaning)

    by_meaning = partial(_p95, ask, questions)
    yield row("question_meaning_p95", f"{what}, by words and meaning", by_meaning, "by words alone", by_words, 150)
    library.close()


def _p95(ask: Callable[[str], object], questions: Sequence[str]) -> float:
    return ocr_search.p95([ocr_search.took(partial(ask, one)) for one in questions])


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
