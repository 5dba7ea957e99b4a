"""Send e-mail through the server of the settings.

The Message-ID is the same for every attempt, so that mail servers and readers can drop repetitions.
"""

from __future__ import annotations

import os
import re
import smtplib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
_QUIT_SECONDS = 2.0
_DEFAULT_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")


def send(message: Message, context: Context[Any]) -> object:
    to = message.to.removeprefix("mailto:")
    if not _ADDRESS.fullmatch(to):
        raise Permanent("PAYLOAD_INVALID", "`to` is not one e-mail address", "write mailto:ops@example.com")
    mail = EmailMessage()
    sender = value_of(HandlersSettings.mail_from) or f"pagemill@{os.uname().nodename}"
    mail["From"], mail["To"] = sender, to
    # `EmailMessage` refuses line breaks in a header, which file names in the subject may contain.
    mail["Subject"] = " ".join(message.subject.split())
    mail["Date"] = formatdate(usegmt=True)
    mail["Message-ID"] = f"<{context.idempotency_key}@{parseaddr(sender)[1].rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    with _connected_server() as server:
        try:
            server.send_message(mail)
        except smtplib.SMTPDataError as error:
            # smtplib accepts only 250. RFC 5321, section 4.2.1: the first digit decides.
            if not 200 <= error.smtp_code < 300:
                raise
    context.log(f"sent to {to}")
    return {"to": to}


def missing() -> MissingDependency | None:
    """Return the reason why this channel cannot send. Notifications ask each channel that has this function."""
    if value_of(HandlersSettings.mail_server):
        return None
    return MissingDependency("no mail server is set", 'set mail_server = "smtp.example.com" and restart the service')


@contextmanager
def _connected_server() -> Iterator[smtplib.SMTP]:
    if (missing_server := missing()) is not None:
        raise missing_server
    host, _, port = value_of(HandlersSettings.mail_server).partition(":")
    security, user = value_of(HandlersSettings.mail_security), value_of(HandlersSettings.mail_user)
    try:
        server = _connect(host, int(port or _DEFAULT_PORTS[security]), security)
        try:
            if security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if user:
                server.login(user, credential_lines(_PASSWORD_CREDENTIAL)[0])
            yield server
        finally:
            _quit(server)
    except smtplib.SMTPAuthenticationError as error:
        if _is_temporary(error.smtp_code):
            raise _refusal(host, error.smtp_code, error.smtp_error) from error
        # Permanent, because servers lock accounts after repeated logins with a wrong password.
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
    # The message is right and a setting is wrong: a retry sends the message if the setting has been corrected.
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


def _quit(server: smtplib.SMTP) -> None:
    # The message is already accepted or refused, whatever follows. `with server` would raise an error for an answer
    # other than 221, and the retry would send the message twice, as would a stop of the job during a long wait.
    with suppress(smtplib.SMTPException, OSError):
        if server.sock is not None:
            server.sock.settimeout(_QUIT_SECONDS)
        server.quit()


def _refusal(host: str, code: int, text: bytes | str) -> Permanent | Retryable:
    answer = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    detail = f"{host} answered {code}: {answer}"
    return Retryable(detail, code=f"SMTP_{code}") if _is_temporary(code) else Permanent(f"SMTP_{code}", detail)


def _is_temporary(code: int) -> bool:
    # RFC 5321, section 4.2.1.
    return 400 <= code < 500
