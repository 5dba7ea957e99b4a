"""Read a document: its own text, what is recognised in its pixels, the rows of its sheets."""
