"""Send e-mail through the server of the settings.

The Message-ID is the same for every attempt, so that a mail reader can recognise repetitions.
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
from worker_service.handlers import Context, Message, MissingDependency, Permanent, Retryable

_PASSWORD_CREDENTIAL = "mail-password"
ENVIRONMENT = [
    HandlersSettings.mail_server.variable,
    HandlersSettings.mail_security.variable,
    HandlersSettings.mail_user.variable,
    HandlersSettings.mail_from.variable,
]
CREDENTIALS = [_PASSWORD_CREDENTIAL]
_TIMEOUT_SECONDS = 30.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")


def send(message: Message, context: Context[Any]) -> object:
    to = message.to.removeprefix("mailto:")
    if not _ADDRESS.fullmatch(to):
        raise Permanent("PAYLOAD_INVALID", "`to` is not one e-mail address", "write mailto:ops@example.com")
    mail = EmailMessage()
    sender = value_of(HandlersSettings.mail_from) or f"pagemill@{os.uname().nodename}"
    mail["From"], mail["To"] = sender, to
    # A header is one line, even if a file name in it is not.
    mail["Subject"] = " ".join(message.subject.split())
    mail["Date"] = formatdate(usegmt=True)
    mail["Message-ID"] = f"<{context.idempotency_key}@{parseaddr(sender)[1].rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    with _connected_server() as server:
        server.send_message(mail)
    context.log(f"sent to {to}")
    return {"to": to}


def missing() -> MissingDependency | None:
    """Return the reason why this channel cannot send. Notifications ask each channel that has this function."""
    if value_of(HandlersSettings.mail_server):
        return None
    return MissingDependency("no mail server is set", 'set mail_server = "smtp.example.com" and restart the service')


@contextmanager
def _connected_server() -> Iterator[smtplib.SMTP]:
    # The job type `notify` sends through other channels too, so a missing mail server must not stop it as a whole.
    if (lacking := missing()) is not None:
        raise lacking
    host, _, port = value_of(HandlersSettings.mail_server).partition(":")
    security, user = value_of(HandlersSettings.mail_security), value_of(HandlersSettings.mail_user)
    number = int(port or _PORTS[security])
    try:
        with _connect(host, number, security) as server:
            if security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if user:
                server.login(user, credential_lines(_PASSWORD_CREDENTIAL)[0])
            yield server
    # Do not try again: repeated logins with a wrong password may lock the account.
    except smtplib.SMTPAuthenticationError as error:
        raise Permanent(
            "MAIL_REFUSED",
            f"{host} refuses the password of {user}",
            f"check mail_user and the credential {_PASSWORD_CREDENTIAL}",
        ) from error
    except smtplib.SMTPRecipientsRefused as error:
        code, text = next(iter(error.recipients.values()))
        raise _refusal(host, code, text) from error
    except smtplib.SMTPResponseException as error:
        raise _refusal(host, error.smtp_code, error.smtp_error) from error
    # A retry does no harm, and sends the message once the administrator has corrected the setting.
    except smtplib.SMTPNotSupportedError as error:
        raise Retryable(
            f"{host} does not support mail_security ({security}) or mail_user: {error}", code="MAIL_REFUSED"
        ) from error
    except (smtplib.SMTPException, OSError) as error:
        raise Retryable(f"{host} cannot be reached: {error}", code="CONNECTION_FAILED") from error


def _connect(host: str, port: int, security: str) -> smtplib.SMTP:
    if security == "tls":
        return smtplib.SMTP_SSL(host, port, timeout=_TIMEOUT_SECONDS, context=ssl.create_default_context())
    return smtplib.SMTP(host, port, timeout=_TIMEOUT_SECONDS)


def _refusal(host: str, code: int, text: bytes | str) -> Permanent | Retryable:
    quoted = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    sentence = f"{host} answered {code}: {quoted}"
    # RFC 5321: 4yz is temporary, 5yz permanent.
    return Retryable(sentence, code=f"SMTP_{code}") if 400 <= code < 500 else Permanent(f"SMTP_{code}", sentence)
