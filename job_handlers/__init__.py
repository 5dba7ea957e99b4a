"""The handlers that pagemill ships.

Of pagemill, they import only `worker_service.handlers` and `worker_service.base`; requests to read also `jobs`.
"""
