"""Find what is new below a folder, wherever it is."""
