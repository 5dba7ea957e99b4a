"""What a `[[schedule]]` may begin beside a job: `crawl = FOLDER`, and `batch = [SOURCE, …]`.

Found by the entry points `worker_service.schedules`. Each makes of what stands in the file the jobs that the verbs
would make, and only when they are due: a directory may come and go.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from job_handlers.crawl import verbs
from job_handlers.crawl.batch import of_address
from job_handlers.crawl.verbs import CrawlWords, crawl_job
from job_handlers.reading.wishes import ReadWords, download_job
from worker_service.handlers import NewJob
from worker_service.verbs import BadInput

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
    read = ReadWords(**{name: values[name] for name in ReadWords.__match_args__})
    asked = {name: values[name] for name in CrawlWords.__match_args__ if name != "read"}
    return crawl_job(CrawlWords(read=read, **asked), owner=owner)


def batch(wish: object, *, owner: str) -> list[NewJob]:
    """Folders, files and addresses; each may be a table, as of a crawl."""
    if not isinstance(wish, list) or not wish:
        raise BadInput('say which sources, such as ["/srv/reports", "https://example.org/report.pdf"]')
    return [_of_source(source, owner) for source in wish]


def _of_source(source: object, owner: str) -> NewJob:
    if not isinstance(source, str):
        return crawl(source, owner=owner)
    if (path := Path(source)).is_absolute():
        return (
            download_job(path, ReadWords(), owner=owner, is_forced=False) if path.is_file() else _folder(source, owner)
        )
    return of_address(source, ReadWords(), owner=owner)


def _folder(source: str, owner: str) -> NewJob:
    return crawl_job(CrawlWords(source), owner=owner)
