"""Where documents come from: a folder for each kind of place."""
