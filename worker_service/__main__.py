"""`python -m worker_service` is the daemon: what systemd starts. `pagemill run` is the same, for a person."""

import sys

from worker_service.daemon.start import main

if __name__ == "__main__":
    sys.exit(main())
