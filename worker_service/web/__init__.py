"""The HTTP API and the web page.

`pagemill serve` runs it as a separate process. It shares only the database with the daemon, so it can be restarted at
any time. It calls `services`, imports no handler, and serves only visitors whom `access` has authenticated.
"""
