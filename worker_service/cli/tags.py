"""`pagemill tag`: list tags, tag and untag documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from worker_service.base.errors import BadInput
from worker_service.base.humanize import counted
from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import Invocation, completer, confirmation_options, verb
from worker_service.cli.documents import confirm_unless_named, document_selector_options, owner_option, show_documents
from worker_service.jobs.library import DocumentSelector
from worker_service.jobs.tags import require_tags
from worker_service.services import documents
from worker_service.services import tags as operations
from worker_service.services.session import Session

_tags_argument = click.argument("tags_text", metavar="TAG", shell_complete=completer("tag"))


@verb
@owner_option
def ls(call: Invocation, owner: str | None) -> None:
    """\b
    pagemill tag add invoice 7 8
    pagemill tag rm draft --owner alice
    pagemill tag ls

    List the tags with the number of their documents.

    A tag is a word or a few, such as invoice or annual report; case does not matter, and a comma separates two. Tags
    stay when a document is read again or its file changes. `search`, `documents` and others accept --tag.
    """
    call.show_items(
        operations.count_tags(call.session, owner),
        ("DOCUMENTS", "TAG"),
        lambda count: (count.documents, count.tag),
        note_if_empty="no document has a tag yet: pagemill tag add invoice 7",
    )


@verb
@_tags_argument
@document_selector_options
@confirmation_options
def add(call: Invocation, selector: DocumentSelector, tags_text: str, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill tag add invoice 7 8
    pagemill tag add 'annual report' --name 'annual report' --owner alice
    pagemill tag add 2026,paid --batch 7 --yes

    Tag documents. If the tag has actions (`pagemill actions`), they start for documents that are read already.
    """
    _change(call, tags_text, selector, operations.add_tags, "Tag", dry_run=dry_run, yes=yes)


@verb
@_tags_argument
@document_selector_options
@confirmation_options
def rm(call: Invocation, selector: DocumentSelector, tags_text: str, dry_run: bool, yes: bool) -> None:
    """\b
    pagemill tag rm draft 7 8
    pagemill tag rm draft --tag draft --yes

    Remove tags from documents.
    """
    _change(call, tags_text, selector, operations.remove_tags, "Untag", dry_run=dry_run, yes=yes)


def _change(
    call: Invocation,
    tags_text: str,
    selector: DocumentSelector,
    change_tags: Callable[[Session, Sequence[int], Sequence[str]], list[int]],
    verb_in_question: str,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    require_tags([tags_text])
    if selector.is_empty:
        raise BadInput("name the documents", "give ids, or selectors such as --batch 7")
    selected = documents.selected_documents(call.session, selector)
    if dry_run:
        show_documents(call, selected)
        return
    question = f"{verb_in_question} {counted(len(selected), 'document')}?"
    confirm_unless_named(question, selected, selector, yes=yes)
    changed_ids = change_tags(call.session, [document.id for document in selected], [tags_text])
    if not call.print_if_json({"items": changed_ids}):
        output.note(f"{counted(len(changed_ids), 'document')} changed")


tag = DefaultVerbGroup("tag", ls, add, rm)
