"""Attempts on a Ray cluster."""
