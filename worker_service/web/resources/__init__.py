"""Rules for the API and the pages: which rows a visitor may list, see and submit."""
