"""Read the pixels of a page."""
