"""Running attempts: fork server, child processes, sandbox, protocol."""
