"""`python -m worker_service` is the daemon: what systemd starts. `pagemill run` is the same, for a person."""

import gc
import sys

from worker_service.daemon.start import main

if __name__ == "__main__":
    code = main()
    # Else the interpreter looks through all that was imported before it leaves.
    gc.freeze()
    sys.exit(code)
