"""Whether it works: status, doctor and its checks, and forgetting a session."""
