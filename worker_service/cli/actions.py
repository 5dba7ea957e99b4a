"""`pagemill actions`: the jobs that follow documents with a tag."""

from __future__ import annotations

from collections.abc import Sequence

import click

from worker_service.cli import DefaultVerbGroup, output
from worker_service.cli.context import DocumentId, Function, Invocation, add_options, completer, verb
from worker_service.jobs.documents import DeferredAction, OnEnd
from worker_service.jobs.follow_ups import read_action
from worker_service.services import enqueue
from worker_service.services import tags as operations

_ACTION_COLUMNS = ("AFTER", "TYPE", "PAYLOAD")


def _tag_action_options(function: Function) -> Function:
    owner_help = "Only documents of this owner."
    return add_options(
        function,
        click.argument("tag", shell_complete=completer("tag")),
        click.argument("action", metavar="TYPE[=JSON]"),
        click.option("--owner", default="", metavar="NAME", shell_complete=completer("owner"), help=owner_help),
        click.option("--on-failure", is_flag=True, help="After a failure instead of a success."),
    )


@verb
@click.argument("document_id", metavar="[DOCUMENT]", required=False, type=DocumentId())
def ls(call: Invocation, document_id: int | None) -> None:
    """\b
    pagemill actions add invoice 'webhook={"url": "https://example.com/read"}'
    pagemill actions ls
    pagemill actions ls document:7

    List the jobs that follow the documents with a tag; or the jobs that follow one document, and which were started.

    For a single document, use `pagemill add … --then TYPE`.
    """
    if document_id is None:
        call.show_items(
            operations.actions_of_tags(call.session),
            ("TAG", "OWNER", *_ACTION_COLUMNS),
            lambda action: (action.tag, action.owner or "all", *_action_cells(action)),
        )
    else:
        call.show_items(
            operations.actions_of_document(call.session, document_id),
            ("GENERATION", "JOB", "STARTED (UTC)", *_ACTION_COLUMNS),
            lambda action: (
                action.generation,
                action.job_id,
                output.whole_seconds(action.fired_at),
                *_action_cells(action),
            ),
        )


@verb
@_tag_action_options
def add(call: Invocation, tag: str, action: str, owner: str, on_failure: bool) -> None:
    """\b
    pagemill actions add invoice 'webhook={"url": "https://example.com/read"}'
    pagemill actions add contract call_alice --owner alice --on-failure

    Enqueue this job each time that a document with this tag is read, and when a document that is read gets the tag.

    Each action runs once per reading of a document. Documents that are read and have the tag now keep as they are:
    `pagemill reindex --tag TAG --force` runs the action for them too.
    """
    is_new = operations.add_tag_action(call.session, tag, action, owner=owner, on_failure=on_failure)
    for sentence in enqueue.unknown_type_warnings(call.session, [read_action(action)]):
        output.note(sentence)
    if not call.print_if_json({"tag": tag, "is_new": is_new}):
        output.note(f"added an action to {tag}" if is_new else "nothing was added: the tag has this action already")


@verb
@_tag_action_options
def rm(call: Invocation, tag: str, action: str, owner: str, on_failure: bool) -> None:
    """\b
    pagemill actions rm invoice 'webhook={"url": "https://example.com/read"}'

    Remove an action from a tag. Jobs that it has started continue.
    """
    operations.remove_tag_action(call.session, tag, action, owner=owner, on_failure=on_failure)
    call.show_result({"tag": tag})


def _action_cells(action: DeferredAction) -> Sequence[object]:
    return ("failure" if action.on_end is OnEnd.FAILURE else "success", action.job_type, action.payload)


actions = DefaultVerbGroup("actions", ls, add, rm)
then = actions  # the former name of the verb
