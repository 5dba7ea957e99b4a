"""`pagemill mcp`: let an AI assistant search and read the documents, over stdin and stdout."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from worker_service.base.errors import ProgramAbsent
from worker_service.cli.context import Invocation, verb

if TYPE_CHECKING:
    from worker_service.services.assistant_tools import Caller


@verb
@click.option("--owner", metavar="NAME", help="Only documents of this owner.")
@click.option("--operate", is_flag=True, help="Let the assistant add documents, too.")
def mcp(call: Invocation, owner: str | None, operate: bool) -> int:
    """\b
    pagemill mcp
    pagemill mcp --owner alice --operate

    Let an AI assistant search and read the documents. The assistant starts this command and talks to it over stdin and
    stdout (Model Context Protocol). It needs `pip install 'pagemill[mcp]'`.
    """
    from worker_service.services.page_images import PageRenderer

    try:
        from worker_service.services.assistant_tools import AssistantTools, Caller, make_server
    except ImportError as error:
        raise ProgramAbsent("the package mcp is not installed", "pip install 'pagemill[mcp]'") from error

    renderer = PageRenderer(call.settings)
    caller = Caller(call.session, owner)
    try:
        tools = AssistantTools(call.settings, renderer, lambda: nullcontext(caller), _add_source)
        make_server(tools, may_add=operate, is_single_threaded=True).run("stdio")
    finally:
        renderer.close()
    return 0


def _add_source(caller: Caller, source: str) -> dict[str, Any]:
    # Without --operate, nothing of this is needed.
    from job_handlers.crawl.requests import SourceOptions, jobs_of_sources
    from job_handlers.reading.find_files import LeftOut
    from worker_service.services import batches

    left_out, owner = LeftOut(), caller.owner or ""
    jobs = jobs_of_sources([source], SourceOptions(), owner=owner, left_out=left_out)
    added = batches.add_batch(caller.session, jobs, batches.BatchRequest(owner, asked={"sources": [source]}))
    return {"batch": added.batch.id, "jobs": len(added.jobs), **left_out.as_answer()}
