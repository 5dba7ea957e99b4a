"""The verb `batch add`: sources of any kind, submitted together."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from job_handlers.crawl.verbs import CrawlWords, crawl_job, found_by, of_a_batch
from job_handlers.fetch.sources import read_reference
from job_handlers.reading import estimate
from job_handlers.reading.batch_options import PRIORITY, priority_option, say_what_is_left_out
from job_handlers.reading.estimate import ToRead
from job_handlers.reading.job_factory import LeftOut, ReadOptions, download_job, find_files
from job_handlers.reading.verbs import reading_options
from worker_service.handlers import NewJob, Permanent, canonical
from worker_service.verbs import (
    BadInput,
    Desk,
    await_batches,
    batches,
    completes_directory,
    enqueue,
    legible,
    output,
    path_of,
    read_action,
    read_stdin,
    say_of_batch,
    say_what_is_replaced,
    telling_that_jobs_go_on,
    verb,
)

_LIST_BYTES_MOST = 16_000_000
_TOLD_MOST = 100
_BATCH_ENDED = {"type": "batch.{state}", "data": {"batch": "{batch_id}", "state": "{state}"}}


@functools.partial(verb, heading="Documents")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, shell_complete=completes_directory)
@click.option("--name", default="", metavar="NAME", help="What it is called in lists.")
@click.option("--owner", default="", metavar="NAME", help="The person that it belongs to.")
@priority_option
@click.option("--credential", default="", metavar="NAME", help="Of folders and files of Drive; drive unless given.")
@reading_options
@click.option("--then-batch", multiple=True, metavar="TYPE[=JSON]", help="Once it has ended, enqueue such a job.")
@click.option("--wait", "is_waiting", is_flag=True, help="Until it has ended; shows how far it is.")
@click.option("--timeout", metavar="LENGTH", help="With --wait: give up after this long.")
@click.option("--dry-run", is_flag=True, help="Only say how much there is to read, and about how long that takes.")
def add(
    desk: Desk,
    sources: Sequence[str],
    name: str,
    owner: str,
    priority: int | None,
    credential: str,
    then_batch: Sequence[str],
    is_waiting: bool,
    timeout: str | None,
    dry_run: bool,
    *,
    read: ReadOptions,
) -> int:
    """\b
    pagemill batch add reports/ --owner alice --name reports
    pagemill batch add https://drive.google.com/drive/folders/1a2B3c… report.pdf --owner alice --wait
    cat list.txt | pagemill batch add - --owner alice --then-batch 'webhook={"url": "https://example.com/done"}'
    pagemill batch add reports/ --dry-run

    Submit sources together: files and directories, folders of Google Drive, addresses, or - for a list of these on
    stdin, one a line. Prints batch:7, which `pagemill wait`, `ls` and `priority` take. What two of them name comes in
    once; of a directory what is hidden, symbolic links and other kinds of files are left out and counted. A folder of
    Drive is gone through as a whole, whatever crawls have found in it before; a file that is known is neither fetched
    nor read again. With --then and --on-failure, such a job follows each time one of its documents is read.

    An owner has one active batch, as a rule: the setting owner_policy says what becomes of the other. With --wait: exit
    code 1 if some of it failed, 124 if the time ran out.
    """
    if timeout is not None and not is_waiting:
        raise BadInput("--timeout says how long to wait", "say --wait as well")
    if dry_run and is_waiting:
        raise BadInput("--dry-run brings nothing in, so there is nothing to wait for", "leave one of them out")
    left_out = LeftOut()
    words = [word for said in sources for word in (_listed() if said == "-" else [said])]
    jobs = jobs_of(words, read, owner=owner, credential=credential, left_out=left_out)
    actions = [_follows(desk, word) for word in then_batch]
    if dry_run:
        estimate.show(desk, _weighed(desk, jobs, read, owner, credential), left_out)
        return 0
    say_what_is_left_out(desk, left_out)
    asked = {"sources": _told(words), **read.asked(), **read.follows(standing=True)}
    how_urgent = priority or PRIORITY
    say_what_is_replaced(desk, owner)
    added = batches.add(desk.session, jobs, owner=owner, name=name, priority=how_urgent, asked=asked, actions=actions)
    if not desk.as_json:
        say_of_batch(desk, added)
    if is_waiting:
        with telling_that_jobs_go_on():
            return await_batches(desk, [added.batch.id], timeout=timeout)
    answer = {"batch": added.batch, "items": added.jobs, "replaced": added.replaced, **left_out.as_answer()}
    if not desk.answered(answer):
        output.show(f"batch:{added.batch.id}")
    return 0


def jobs_of(
    sources: Sequence[str],
    read: ReadOptions,
    *,
    owner: str,
    credential: str = "",
    left_out: LeftOut,
    most: int | None = None,
) -> list[NewJob]:
    """The jobs that bring them in; what two of them name is brought in once. `most`: see `find_files`."""
    found: dict[tuple[str, str], NewJob] = {}
    for word in sources:
        for key, job in _of_source(word, read, owner, credential, left_out, most):
            found.setdefault((job.platform, key), job)
    return list(found.values())


def _of_source(
    word: str, read: ReadOptions, owner: str, credential: str, left_out: LeftOut, most: int | None
) -> list[tuple[str, NewJob]]:
    if not word:
        # Path("") is the current directory.
        raise BadInput("a source is empty", "name a file, a directory, a folder or an address")
    path = Path(word).expanduser()
    if word.startswith(("/", "./", "../", "~")) or path.exists():
        files = find_files(path, left_out, most=most)
        jobs = [download_job(file, read, owner=owner, is_forced=False, standing=True) for file in files]
        return [(job.source_key or "", job) for job in jobs]
    if "://" not in word:
        raise BadInput(f"there is no file or directory {word!r}, and an address has its https://")
    job = of_address(word, read, owner=owner, credential=credential)
    if job.platform == "local":
        return _of_source(str(path_of(job.source_key or "")), read, owner, credential, left_out, most)
    return [(read_reference(word)[1].key, job if job.source_key else of_a_batch(job))]


def of_address(address: str, read: ReadOptions, *, owner: str, credential: str = "") -> NewJob:
    """What brings in a file, or crawls a folder; of either, all that is found is read so from now on."""
    try:
        source, reference = read_reference(address)
    except Permanent as error:
        raise BadInput(error.detail, error.remedy) from error
    # What is not fetched with one, such as an https URL, needs none.
    credential = credential if source.CREDENTIALS else ""
    if reference.is_folder:
        return crawl_job(CrawlWords(address, credential=credential, read=read), owner=owner)
    said = {"credential": credential, "read": read.asked(), **read.follows(standing=True)}
    payload = {"source": address} | {name: value for name, value in said.items() if value}
    return NewJob(
        "download",
        platform=reference.platform,
        owner=owner,
        payload=canonical(payload),
        source=source.rests_with(credential),
        source_key=reference.key,
        on_failure=read.after_failure(),
    )


def _listed() -> list[str]:
    raw = read_stdin(_LIST_BYTES_MOST + 1)
    if len(raw) > _LIST_BYTES_MOST:
        raise BadInput(
            f"the list on stdin is longer than {output.size(_LIST_BYTES_MOST)}", "make several batches of it"
        )
    # A name of a file may be anything, and what is around an address is none of it.
    words = [os.fsdecode(line) for line in raw.splitlines() if line.strip()]
    if not words:
        raise BadInput("the list on stdin is empty", "write a file, directory, folder or address on each line")
    return words


def _told(words: Sequence[str]) -> list[str]:
    """What is kept of them for eyes."""
    more = len(words) - _TOLD_MOST
    return [*map(legible, words[:_TOLD_MOST]), *([f"and {more:,} more"] if more > 0 else [])]


def _follows(desk: Desk, word: str) -> Mapping[str, Any]:
    action = read_action(word)
    payload: dict[str, Any] = json.loads(action.payload) if action.payload else {}
    if action.job_type == "webhook" and "event" not in payload:
        payload["event"] = _BATCH_ENDED
    enqueue.refuse_unfit_action(desk.session, replace(action, payload=canonical(payload) if payload else ""))
    for sentence in enqueue.doubts(desk.session, [action]):
        output.say(sentence)
    return {"job_type": action.job_type, **({"payload": payload} if payload else {})}


# ── What would become of it ──


def _weighed(desk: Desk, jobs: Sequence[NewJob], read: ReadOptions, owner: str, credential: str) -> ToRead:
    """Folders are gone through by a job that only counts: it is compared with what crawls have found before."""
    files = [path_of(job.source_key or "") for job in jobs if job.job_type == "download" and job.platform == "local"]
    found = estimate.estimate_files(desk, files, owner=owner, is_read_again=bool(read.asked()))
    addresses = sum(job.job_type == "download" and job.platform != "local" for job in jobs)
    found += ToRead(addresses, to_read=addresses, unsized=addresses)
    for folder in (json.loads(job.payload or "")["folder"] for job in jobs if job.job_type != "download"):
        told = found_by(
            desk, crawl_job(CrawlWords(folder, credential=credential, dry_run=True, read=read), owner=owner)
        )
        new, size = told.get("enqueued", 0), told.get("bytes", 0)
        known = told.get("unchanged", 0)
        found += ToRead(new + known, size, known, new, size)
    return found
