"""Fetch files from any source."""
