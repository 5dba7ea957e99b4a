"""The handlers that pagemill ships.

Of pagemill, they import `worker_service.handlers` and `worker_service.base`, and modules called `requests` also `jobs`.
"""
