from worker_service.handlers import Context, Handler


def _run(context: Context[dict[str, str]]) -> None:
    return None


handler = Handler("silent", _run, dict[str, str])
first = Handler("first", _run, dict[str, str])
