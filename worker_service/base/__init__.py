"""Helpers for every package."""
