"""Attempts on other machines: a gateway speaks the nursery's words at the head, an agent hosts a nursery on a node."""
