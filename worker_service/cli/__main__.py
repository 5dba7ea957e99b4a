"""`python -m worker_service.cli` is `pagemill`."""

from worker_service.cli import main

if __name__ == "__main__":
    main()
