"""Handlers that misbehave, for tests. Each module has entry points."""
