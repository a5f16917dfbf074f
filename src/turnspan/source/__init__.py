"""Reads transcripts: finds sessions and subagents, follows growing files, yields traces from a cursor."""
