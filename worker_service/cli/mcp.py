"""`pagemill mcp`: the library for AI assistants, by the Model Context Protocol over stdin and stdout."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from worker_service.base.errors import PagemillError, ProgramAbsent
from worker_service.cli.context import Invocation, verb

if TYPE_CHECKING:
    from worker_service.cli.mcp_tools import Tools

Tool = Callable[..., Awaitable[Any]]

_INSTRUCTIONS = (
    "A library of documents, read page by page, by OCR where needed. Search it with `search`, read what you find "
    "with `fetch` or `read_pages`, and quote document and page, as in 7:12 (page 12 of document 7)."
)


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
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        raise ProgramAbsent("the package mcp is not installed", "pip install 'pagemill[mcp]'") from error
    from worker_service.cli.mcp_tools import Tools

    tools = Tools(call.session, owner)
    try:
        _server(MCPServer, tools, may_add=operate).run("stdio")
    finally:
        tools.close()
    return 0


def _server(server_class: type[Any], tools: Tools, *, may_add: bool) -> Any:
    server = server_class("pagemill", instructions=_INSTRUCTIONS, log_level="WARNING")
    reading: list[Tool] = [
        tools.search,
        tools.fetch,
        tools.list_documents,
        tools.read_pages,
        tools.tables,
        tools.page_image,
    ]
    for tool in [*reading, *([tools.add_document] if may_add else [])]:
        server.tool()(_with_readable_errors(tool))
    return server


def _with_readable_errors(tool: Tool) -> Tool:
    """Let the assistant read what is wrong: the server hides the text of other exceptions."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    async def call(*arguments: Any, **named: Any) -> Any:
        try:
            return await tool(*arguments, **named)
        except PagemillError as error:
            raise ToolError(str(error)) from error

    return call
