"""HTTP and the page: what a person can do, for programs and in a browser.

A process of its own (`pagemill serve`), which meets the daemon in the database and nowhere else: it may be restarted at
any time. It calls operations, imports no handler, and trusts nobody whom `access` has not let in.
"""
