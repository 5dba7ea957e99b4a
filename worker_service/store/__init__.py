"""The SQLite database of jobs and documents. No other package contains SQL."""
