"""Google Drive.

Whoever imports anything of it has the pacer too: its memory is shared by the children of the process that imported it,
and Google's client, which takes a second, is imported by the children themselves.
"""

from job_handlers.sources.drive import pacer as pacer
