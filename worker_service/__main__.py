"""Entry point of the daemon: systemd starts `python -m worker_service`. `pagemill run` does the same for users."""

import gc
import sys

from worker_service.daemon.start import main

if __name__ == "__main__":
    code = main()
    # Skip the garbage collection at exit, which would visit every imported object.
    gc.freeze()
    sys.exit(code)
