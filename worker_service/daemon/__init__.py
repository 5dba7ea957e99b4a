"""The daemon: claim jobs, run each in a child process, record outcomes. Entry point: `start.run`."""
