"""The SQLite database. No other package contains SQL."""
