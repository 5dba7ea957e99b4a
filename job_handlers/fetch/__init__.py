"""Fetch a file, whole and right, from whatever source it comes."""
