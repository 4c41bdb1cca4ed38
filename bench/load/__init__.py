"""Load-test client for OpenAI-compatible endpoints; see __main__.py."""
