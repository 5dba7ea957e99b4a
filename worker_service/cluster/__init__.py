"""Runs attempts on a Ray cluster: the driver process, the task, the fork server of each node, and slices of PDFs."""
