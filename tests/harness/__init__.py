"""What the suites share: servers as child processes, an HTTP client, the test model."""
