"""One function per action of a user, with plain values in and out, for all surfaces."""
