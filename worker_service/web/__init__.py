"""The HTTP API and the web page.

`pagemill serve` runs them in a process that shares only the database with the daemon.
"""
