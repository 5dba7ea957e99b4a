"""What a person can do: one function for each thing, which the command line, HTTP and pages call, and nothing else.

They take plain values, decide, and answer with plain values. How a value is shown is the caller's.
"""
