"""Attempts on a Ray cluster: driver process, task, fork server of each node, slices of PDFs."""
