"""What a visitor may list, see and submit: one set of rules for the API and the pages."""
