"""Where jobs live: the only room that speaks SQL."""
