"""The checkout's door to the command line: ``python cli.py ls`` is ``pagemill ls``.

It stays out of the wheel, where a global module named ``cli`` would clash with others.
"""

from worker_service.cli import main

if __name__ == "__main__":
    main()
