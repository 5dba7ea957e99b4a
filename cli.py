"""Runs the command line from a checkout: ``python cli.py ls`` is ``pagemill ls``.

The wheel leaves it out, because a global module named ``cli`` would clash with others.
"""

from worker_service.cli import main

if __name__ == "__main__":
    main()
