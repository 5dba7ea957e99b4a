"""A document worker for one machine. ARCHITECTURE.md describes its packages."""

VERSION = "0.1.0"
