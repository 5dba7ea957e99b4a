"""The JSON API under /api. `openapi` collects the endpoints of all modules."""
