"""Helpers for every package: errors, clock, log events, text and files."""
