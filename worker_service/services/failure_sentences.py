"""Explanations and remedies for failures, by error code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from worker_service.jobs.job import Job

Helps = Literal["", "retry", "password", "upload"]


class Explanation(Struct, frozen=True):
    happened: str
    advice: str = ""
    """Empty: the error's own remedy is shown."""
    helps: Helps = ""
    """The action to offer with the failure."""


_LATER = "It was tried several times. Try again later."
_GOOD_COPY = "Add a good copy of the file."
_ADMINISTRATOR = "Ask the administrator to look at the details, then try again."
_GOOGLE_KEY = "Google Drive did not accept the key of this service."

_EXPLANATIONS: Mapping[str, Explanation] = {
    # The file itself.
    "PDF_ENCRYPTED": Explanation("This PDF is locked with a password.", "Enter the password to read it.", "password"),
    "PASSWORD_WRONG": Explanation("The password does not open this PDF.", "Type it again.", "password"),
    "FILE_ENCRYPTED": Explanation(
        "This file is locked with a password.", "Save it without a password and add that copy.", "upload"
    ),
    "NOT_WHAT_IT_SAYS": Explanation(
        "The content of this file is not what its name says, for example a web page saved as a PDF.",
        "Download the file again and add that copy.",
        "upload",
    ),
    "KIND_REFUSED": Explanation("Files of this kind cannot be read."),
    "KIND_UNSUPPORTED": Explanation(
        "Files of this kind cannot be read.", "Export the file as a PDF and add that copy.", "upload"
    ),
    "BROKEN": Explanation("This file is damaged and cannot be opened.", _GOOD_COPY, "upload"),
    "EMPTY": Explanation("This file is empty.", _GOOD_COPY, "upload"),
    "FILE_EMPTY": Explanation("This file is empty.", _GOOD_COPY, "upload"),
    "NOTHING": Explanation("There is nothing to read in this file."),
    "TOO_LARGE": Explanation("This file is too large.", "Split it and add the parts.", "upload"),
    "PAGES_TOO_LARGE": Explanation("Too many pages of this file are too large to draw."),
    "PAGES_MISSING": Explanation("Some pages of this file were not read.", "Try again.", "retry"),
    "FILE_ABSENT": Explanation("The original file is no longer stored.", "Add the file again.", "upload"),
    "FILE_FORGOTTEN": Explanation("The stored original no longer matches its record.", "Add the file again.", "upload"),
    "TEXT_ABSENT": Explanation("The text file for this document cannot be read.", helps="retry"),
    "LANGUAGE_UNKNOWN": Explanation("There is no text recognition for the chosen language."),
    # Fetching a file: a matter of the network or of the server.
    "CONNECTION_LOST": Explanation("The connection was lost while this file was fetched.", _LATER, "retry"),
    "CONNECTION_FAILED": Explanation("The server could not be reached.", _LATER, "retry"),
    "HOST_UNKNOWN": Explanation("The server’s name could not be found.", "Check the address, then try again.", "retry"),
    "TIMED_OUT": Explanation("This took longer than its time limit and was stopped.", "Try again.", "retry"),
    "CHUNK_TOO_SLOW": Explanation("The server sent this file too slowly.", _LATER, "retry"),
    "CUT_SHORT": Explanation("The server ended the transfer too early.", _LATER, "retry"),
    "ANSWER_GARBLED": Explanation("The server sent an answer that makes no sense.", _LATER, "retry"),
    "SERVER_ERROR": Explanation("The server had an error of its own.", _LATER, "retry"),
    "RATE_LIMITED": Explanation("The server asked for fewer requests.", _LATER, "retry"),
    "TOKEN_UNREACHABLE": Explanation("Google’s sign-in could not be reached.", _LATER, "retry"),
    "STILL_WRITTEN": Explanation("Another program was still writing this file.", "Try again.", "retry"),
    "CHANGED": Explanation("This file kept changing while it was fetched.", "Try again once it is done.", "retry"),
    "QUOTA_USED_UP": Explanation("The download quota of the file or account is used up.", "Try tomorrow.", "retry"),
    "DISK_FULL": Explanation("The disk is full.", "Free some space, then try again.", "retry"),
    "SPOILT": Explanation("This file arrived damaged, each time differently.", _LATER, "retry"),
    "DIGEST_WRONG": Explanation("This file did not arrive as its source describes it.", _LATER, "retry"),
    "RANGE_WRONG": Explanation("The server sent other parts of the file than requested.", _LATER, "retry"),
    "RANGE_IGNORED": Explanation("The server cannot continue an interrupted download.", _LATER, "retry"),
    "PAGE_INSTEAD": Explanation(
        "The server sent a web page, perhaps a sign-in page, instead of the file.",
        "Download the file yourself and add that copy.",
        "upload",
    ),
    # Fetching a file: a person has to change something.
    "NOT_FOUND": Explanation("This file does not exist, or is not shared with this service.", helps="retry"),
    "FOLDER_NOT_FOUND": Explanation("This folder does not exist, or is not shared with this service.", helps="retry"),
    "ACCESS_REFUSED": Explanation("This service is not allowed to read the file.", helps="retry"),
    "DOWNLOAD_FORBIDDEN": Explanation("The owner of this file does not allow downloads.", helps="retry"),
    "BLOCKED": Explanation("The server refused to send this file and gave no reason.", _LATER, "retry"),
    "GONE": Explanation("This file is no longer at its address."),
    "NO_FILE": Explanation("This is not a file."),
    "IN_TRASH": Explanation("This file is in the trash.", "Restore it there, then try again.", "retry"),
    "UNREADABLE": Explanation("This file cannot be read where it is stored.", helps="retry"),
    "PATH_REFUSED": Explanation("This service is not allowed to read files in that folder."),
    "REFUSED": Explanation("The server refused to send this file."),
    "REDIRECTS": Explanation("The address of this file leads to another one that is not allowed."),
    "REQUEST_INVALID": Explanation("The server did not understand the request.", _ADMINISTRATOR, "retry"),
    "NATIVE_DOCUMENT": Explanation(
        "This is a Google document, which has no file to download.", "Save it as a PDF and add that copy.", "upload"
    ),
    "EXPORT_TOO_LARGE": Explanation(
        "Google does not export documents of this size.", "Save it as a PDF yourself and add that copy.", "upload"
    ),
    "LENGTH_UNKNOWN": Explanation("The server does not say how long this file is."),
    "NOT_AS_EXPECTED": Explanation("This file is not the one that was expected."),
    "ABUSE_NOT_ACKNOWLEDGED": Explanation("Google marks this file as malware or spam, so it was not fetched."),
    "CERTIFICATE_INVALID": Explanation("The server’s certificate is not valid.", _ADMINISTRATOR, "retry"),
    "SOURCE_UNKNOWN": Explanation("This address does not name a file."),
    "FOLDER_UNKNOWN": Explanation("This address does not name a folder."),
    "URL_INVALID": Explanation("This address is not valid."),
    "URL_INSECURE": Explanation("This address does not begin with https://."),
    "ADDRESS_REFUSED": Explanation("This address is not on the public internet, so it was not opened.", helps="retry"),
    # Accounts and settings.
    "CREDENTIAL_REFUSED": Explanation(_GOOGLE_KEY, helps="retry"),
    "CREDENTIAL_ABSENT": Explanation("The key for Google Drive is missing.", helps="retry"),
    "CREDENTIAL_EXPOSED": Explanation("Other users can read the key for Google Drive.", helps="retry"),
    "CREDENTIAL_INVALID": Explanation("The key for Google Drive is not complete.", helps="retry"),
    "SCOPE_MISSING": Explanation(_GOOGLE_KEY, helps="retry"),
    "API_DISABLED": Explanation("Google Drive is not enabled for the key of this service.", _ADMINISTRATOR, "retry"),
    "DOMAIN_POLICY": Explanation("Your organisation does not let this service use Google Drive.", helps="retry"),
    "SECRET_ABSENT": Explanation("A password or key that this needs is missing.", helps="retry"),
    "SECRET_INVALID": Explanation("A password or key that this needs is not valid.", _ADMINISTRATOR, "retry"),
    "SETTING_INVALID": Explanation("A setting is not valid.", _ADMINISTRATOR, "retry"),
    "SETTINGS_INVALID": Explanation("The options for reading this document are not valid."),
    "PAYLOAD_INVALID": Explanation("The request was not complete."),
    "NO_DOCUMENT": Explanation("The request names no document."),
    "WORKSPACE_UNWRITABLE": Explanation("The folder for documents cannot be written.", _ADMINISTRATOR, "retry"),
    "WORKSPACE_UNREADABLE": Explanation("The folder for documents cannot be read.", _ADMINISTRATOR, "retry"),
    # Messages and programs.
    "MAIL_REFUSED": Explanation("The mail server did not accept the message.", _ADMINISTRATOR, "retry"),
    "NOT_DELIVERED": Explanation("The message was not delivered.", _LATER, "retry"),
    "HTTP": Explanation("The server did not accept the request.", _ADMINISTRATOR, "retry"),
    "SMTP": Explanation("The mail server did not accept the message.", _ADMINISTRATOR, "retry"),
    "COMMAND_ABSENT": Explanation("The program for this job cannot be started.", _ADMINISTRATOR, "retry"),
    "COMMAND_CRASHED": Explanation("The program for this job crashed.", _ADMINISTRATOR, "retry"),
    "EXIT": Explanation("The program for this job reported an error.", _ADMINISTRATOR, "retry"),
    "TOO_MANY_FILES": Explanation("The program for this job wrote too many files.", _ADMINISTRATOR, "retry"),
    # The attempt.
    "CPU_TIME_USED_UP": Explanation("This took more computing time than allowed and was stopped."),
    "OUT_OF_MEMORY": Explanation("This needed more memory than allowed and was stopped.", "Try again.", "retry"),
    "CRASHED": Explanation("The program crashed while it worked on this.", _ADMINISTRATOR, "retry"),
    "HANDLER_ERROR": Explanation("Something went wrong inside pagemill.", _ADMINISTRATOR, "retry"),
    "WORKER_DIED": Explanation("The service stopped while it worked on this.", "Try again.", "retry"),
    "REQUEUED_TOO_OFTEN": Explanation("The service stopped again and again during this.", "Try again.", "retry"),
    "NODE_LOST": Explanation("The computer that worked on this was lost.", "Try again.", "retry"),
    "MAY_HAVE_RUN": Explanation(
        "This was interrupted, and may have taken effect already.", "If it did not, try again.", "retry"
    ),
    "UNKNOWN_TYPE": Explanation("Nothing is installed that can do this job.", helps="retry"),
    "SANDBOX_UNAVAILABLE": Explanation("This system does not offer the required sandbox.", _ADMINISTRATOR, "retry"),
}  # fmt: skip

_CODES_HELPED_BY_OTHER_OPTIONS = ("LANGUAGE_UNKNOWN", "SETTINGS_INVALID", "CPU_TIME_USED_UP", "PAGES_TOO_LARGE")

_GENERAL_CODE_BY_ENDING = {"_BROKEN": "BROKEN", "_EMPTY": "NOTHING", "_TOO_LARGE": "TOO_LARGE"}
"""SHEET_BROKEN is explained like BROKEN."""
_CODES_WITH_NUMBER = ("HTTP", "SMTP", "EXIT")
"""HTTP_503 is explained like HTTP."""


def explanation_of(code: str) -> Explanation | None:
    if code in _EXPLANATIONS:
        return _EXPLANATIONS[code]
    for ending, general_code in _GENERAL_CODE_BY_ENDING.items():
        if code.endswith(ending):
            return _EXPLANATIONS[general_code]
    for general_code in _CODES_WITH_NUMBER:
        if code.startswith(f"{general_code}_"):
            return _EXPLANATIONS[general_code]
    return None


def may_read_again(code: str) -> bool:
    """Return whether another attempt may succeed, perhaps with other options."""
    explanation = explanation_of(code)
    return explanation is None or explanation.helps in ("retry", "password") or code in _CODES_HELPED_BY_OTHER_OPTIONS


def explain_failure(job: Job) -> Explanation:
    explanation = explanation_of(job.error_code or "")
    if explanation is None:
        # A retry helps if all attempts were used, or if the error names something to change before it.
        helps: Helps = "retry" if job.retry_count >= job.max_retries > 0 or job.error_remedy else ""
        explanation = Explanation(_sentence(job.error_message or f"{job.job_type} failed"), helps=helps)
    if explanation.advice:
        return explanation
    default_advice = "Try again." if explanation.helps == "retry" else ""
    return replace(explanation, advice=_sentence(job.error_remedy or default_advice))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) or not text else ".")
