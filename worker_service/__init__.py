"""Pagemill: a document worker for one machine. The rooms are described in ARCHITECTURE.md."""

VERSION = "0.1.0"
