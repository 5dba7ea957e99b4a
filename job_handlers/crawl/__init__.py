"""Find new and changed files."""
