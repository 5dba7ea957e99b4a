"""Running attempts: fork server, child processes, sandbox, and the protocol between them."""
