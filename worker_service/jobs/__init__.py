"""What a job is: its states, retries, digest and selectors. Pure: no clock, no I/O."""
