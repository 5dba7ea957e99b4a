"""What programs ask for: JSON under /api. A module ends with its `routes`; `server` gathers them."""
