"""What every package may use: errors, clock, log events, text and files."""
