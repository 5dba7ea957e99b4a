"""What is asked for where nobody sits at a shell: a folder, or several sources together.

A `[[schedule]]` says `crawl = FOLDER` or `batch = [SOURCE, …]` (entry points `worker_service.schedules`), HTTP and the
page say `sources` (`together` among `worker_service.wishes`). Each makes the jobs that the verbs would make, and only
when they are due: a directory may come and go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from job_handlers.crawl import verbs
from job_handlers.crawl.batch import jobs_of
from job_handlers.crawl.verbs import CrawlWords, crawl_job, of_a_batch
from job_handlers.fetch.errors import FetchError
from job_handlers.fetch.sources.local import actual_path
from job_handlers.reading.job_factory import LeftOut, ReadOptions, parse_read_options
from worker_service.handlers import FILE_URL, DeferredAction, NewJob, written
from worker_service.verbs import BadInput

_LOOKED_AT_MOST = 100_000
"""In a directory, while others wait."""

# Options that mean nothing in a schedule, or that it says itself.
_NOT_SCHEDULED = {"--owner", "--batch", "--priority", "--watch", "--dry-run", "--json", "--database", "--help"}


def crawl(wish: object, *, owner: str) -> NewJob:
    """A folder, or a table with a folder and the options of the verb."""
    table = wish if isinstance(wish, Mapping) else {"folder": wish}
    folder = table.get("folder")
    if not isinstance(folder, str) or folder.startswith(("./", "../")):
        raise BadInput(f"say which folder, such as /srv/reports or { {'folder': '/srv/reports', 'lang': ['deu']} }")
    options = {param.opts[-1]: param for param in verbs.crawl.params if isinstance(param, click.Option)}
    known = sorted(flag for flag in options if flag not in _NOT_SCHEDULED)
    words: list[str] = []
    for key, value in table.items():
        flag = f"--{key.replace('_', '-')}"
        if key == "folder":
            continue
        if flag not in known:
            raise BadInput(f"there is no field {key!r}: beside folder there are {', '.join(one[2:] for one in known)}")
        said = value if isinstance(value, list) else [value]
        if options[flag].is_flag:
            words += [flag] * (value is True)
        elif not all(isinstance(one, str | int) and not isinstance(one, bool) for one in said):
            raise BadInput(f"{key} is a text, a number or a list of them, not {value!r}")
        else:
            words += [word for one in said for word in (flag, str(one))]
    try:
        values = verbs.crawl.make_context("crawl", [*words, "--", folder]).params
    except click.UsageError as error:
        raise BadInput(error.format_message()) from error
    read = ReadOptions(**{name: values[name] for name in ReadOptions.__struct_fields__})
    asked = {name: values[name] for name in CrawlWords.__struct_fields__ if name != "read"}
    return crawl_job(CrawlWords(read=read, **asked), owner=owner)


def batch(wish: object, *, owner: str) -> list[NewJob]:
    """Folders, files and addresses; each may be a table, as of a crawl."""
    if not isinstance(wish, list) or not wish:
        raise BadInput('say which sources, such as ["/srv/reports", "https://example.org/report.pdf"]')
    return together(wish, {}, owner=owner)[0]


def together(
    sources: Sequence[object], words: Mapping[str, Sequence[str]], *, owner: str
) -> tuple[list[NewJob], dict[str, object], list[DeferredAction], LeftOut]:
    """Of several sources what `batch add` makes of them: their jobs, how they are to be read, what follows, and what is
    left out. Paths are whole ones, of places where jobs may read."""
    of_reading = {name: values for name, values in words.items() if name != "credential"}
    read, left_out, credential = parse_read_options(of_reading), LeftOut(), next(iter(words.get("credential", ())), "")
    texts = [source for source in sources if isinstance(source, str)]
    for text in texts:
        _refuse_no_place(text)
    made = jobs_of(texts, read, owner=owner, credential=credential, left_out=left_out, most=_LOOKED_AT_MOST)
    made += [of_a_batch(crawl(source, owner=owner)) for source in sources if not isinstance(source, str)]
    return made, read.asked(), read.actions(), left_out


def _refuse_no_place(word: str) -> None:
    is_file = word.startswith(FILE_URL)
    if "://" in word and not is_file:
        return
    if not (word.startswith("/") or is_file):
        raise BadInput(
            f"{word[:200]!r} is neither a whole path, such as /srv/reports, nor an address with its https://"
        )
    try:
        actual_path(word if is_file else written(Path(word)))
    except FetchError as error:
        raise BadInput(error.detail, error.remedy) from error
