"""The service layer: one function per user action. Functions take and return plain values; the caller shows them."""
