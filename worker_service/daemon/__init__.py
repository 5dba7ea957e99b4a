"""The daemon: claims jobs, runs each in a child, writes how it ended. `start.run` is the door."""
