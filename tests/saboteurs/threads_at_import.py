"""Starts a thread when it is imported."""

import threading

from worker_service.handlers import Context, Done, Handler

threading.Thread(target=threading.Event().wait, daemon=True).start()


def _run(context: Context[dict[str, str]]) -> Done:
    return Done(threading.active_count())


handler = Handler("threads_at_import", _run, dict[str, str])
