"""The JSON API under /api. Each module ends with its `routes`, which `app` collects."""
