"""The service layer: one function per user action, called by the command line, the HTTP API and the web pages.

The functions take and return plain values. `serialize.as_object` converts any of them to JSON; `parse` reads jobs and
selectors as users write them. The caller decides how a value is shown.
"""
