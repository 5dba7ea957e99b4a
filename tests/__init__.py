"""The tests of pagemill; the folders mirror the packages of `worker_service`."""
