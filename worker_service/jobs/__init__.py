"""Immutable values and pure rules about jobs, documents and batches. No clock and no I/O."""
