"""What a person can do: one function for each thing, which the command line, HTTP and pages call, and nothing else.

They take plain values, decide, and answer with plain values: `objects.as_object` makes JSON of any of them, `words`
reads jobs and selectors from what a person writes. How a value is shown is the caller's.
"""
