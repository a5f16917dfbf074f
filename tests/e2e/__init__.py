"""End-to-end tests: a real client runs against a scripted API, and the exported spans are compared with the API's record."""
