"""Reading documents, on generated files."""
