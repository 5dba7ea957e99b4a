"""A node of `crowd`, as a head starts one: it gives its two pipes away, and ends. Two hundred begin at once, so it
imports nothing else."""

import socket
import sys

with socket.socket(socket.AF_UNIX) as crowd:
    crowd.connect(sys.argv[1])
    socket.send_fds(crowd, [b"."], [0, 1])
