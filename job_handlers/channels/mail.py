"""Addresses like `mailto:ops@example.com`: an e-mail, through the server that the settings name.

With `mail_user` it logs in; the password is the credential `mail-password`. `Message-ID` is the same for every attempt,
so that a server or a reader that has seen it can tell.
"""

from __future__ import annotations

import os
import re
import smtplib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Any

from job_handlers.channels import credential_lines
from job_handlers.settings import HandlersSettings, value_of
from worker_service.handlers import (
    Context,
    Message,
    MissingDependency,
    Permanent,
    Retryable,
)

_PASSWORD = "mail-password"
ENVIRONMENT = [
    HandlersSettings.mail_server.variable,
    HandlersSettings.mail_security.variable,
    HandlersSettings.mail_user.variable,
    HandlersSettings.mail_from.variable,
]
CREDENTIALS = [_PASSWORD]
_ANSWER_SECONDS = 30.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")


def send(message: Message, context: Context[Any]) -> object:
    to = message.to.removeprefix("mailto:")
    if not _ADDRESS.fullmatch(to):
        raise Permanent("PAYLOAD_INVALID", "`to` is not one e-mail address", "write mailto:ops@example.com")
    mail = EmailMessage()
    sender = value_of(HandlersSettings.mail_from) or f"pagemill@{os.uname().nodename}"
    mail["From"], mail["To"] = sender, to
    # A header is one line, whatever stood in the name of a file.
    mail["Subject"] = " ".join(message.subject.split())
    mail["Date"] = formatdate(usegmt=True)
    mail["Message-ID"] = f"<{context.idempotency_key}@{parseaddr(sender)[1].rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    with _server() as server:
        server.send_message(mail)
    context.log(f"{to} was written to")
    return {"to": to}


@contextmanager
def _server() -> Iterator[smtplib.SMTP]:
    host, _, port = value_of(HandlersSettings.mail_server).partition(":")
    if not host:
        # Not of the whole type: most machines send none, and need not be told.
        raise MissingDependency(
            "no mail server is set", 'mail_server = "smtp.example.com" in the settings, then a restart'
        )
    security, user = value_of(HandlersSettings.mail_security), value_of(HandlersSettings.mail_user)
    number = int(port or _PORTS[security])
    try:
        with _connected(host, number, security) as server:
            if security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if user:
                server.login(user, credential_lines(_PASSWORD)[0])
            yield server
    except smtplib.SMTPAuthenticationError as error:
        raise Permanent(
            "MAIL_REFUSED",
            f"{host} does not take the password of {user}",
            f"see mail_user and the credential {_PASSWORD}",
        ) from error
    except smtplib.SMTPRecipientsRefused as error:
        code, words = next(iter(error.recipients.values()))
        raise _refusal(host, code, words) from error
    except smtplib.SMTPResponseException as error:
        raise _refusal(host, error.smtp_code, error.smtp_error) from error
    except smtplib.SMTPNotSupportedError as error:
        raise Retryable(
            f"{host} does not offer what mail_security ({security}) or mail_user asks for: {error}", code="MAIL_REFUSED"
        ) from error
    except (smtplib.SMTPException, OSError) as error:
        raise Retryable(f"{host} cannot be reached: {error}", code="CONNECTION_FAILED") from error


def _connected(host: str, port: int, security: str) -> smtplib.SMTP:
    if security == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=_ANSWER_SECONDS, context=ssl.create_default_context())
    return smtplib.SMTP(host, port, timeout=_ANSWER_SECONDS)


def _refusal(host: str, code: int, words: bytes | str) -> Permanent | Retryable:
    said = words.decode("utf-8", "replace") if isinstance(words, bytes) else words
    sentence = f"{host} answered {code}: {said}"
    # RFC 5321: 4yz may be otherwise later, 5yz will not.
    return Retryable(sentence, code=f"SMTP_{code}") if 400 <= code < 500 else Permanent(f"SMTP_{code}", sentence)
