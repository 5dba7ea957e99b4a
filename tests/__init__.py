"""What pagemill promises, as sentences. The folders mirror the rooms of `worker_service`."""
