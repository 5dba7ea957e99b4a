"""Where an attempt runs: the nursery, its children, what they may touch, and what they say."""
