"""Values and pure rules: no clock and no I/O."""
