"""The daemon: claims jobs, runs each in a child process and records its outcome. Entry point: `start.run`."""
