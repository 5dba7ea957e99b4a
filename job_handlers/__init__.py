"""The handlers that pagemill ships.

They import `worker_service.handlers` and nothing else of ours, like anyone else's.
"""
