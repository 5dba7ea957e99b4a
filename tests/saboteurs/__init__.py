"""Handlers that misbehave in every way that a handler can. Each module is an entry point that only tests name."""
