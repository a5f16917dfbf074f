"""The real client against a scripted API: what it was served, next to what reached the OTLP server."""
