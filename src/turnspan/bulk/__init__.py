"""Many sessions at once: plan, process pool, backfill, dry run, verify, retention."""
