"""`python -m worker_service.commands` is `pagemill`."""

from worker_service.commands import main

if __name__ == "__main__":
    main()
