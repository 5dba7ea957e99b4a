"""Entry point of the daemon under systemd; `pagemill run` is for users."""

import gc
import sys

from worker_service.base.address_space import TooLittleMemory, require_address_space

if __name__ == "__main__":
    try:
        require_address_space()
        from worker_service.daemon.start import main  # imports large libraries

        code = main()
    except TooLittleMemory as error:
        print(f"pagemill: {error}", file=sys.stderr)
        code = error.exit_code
    # Skip the garbage collection at exit, which would visit every imported object.
    gc.freeze()
    sys.exit(code)
