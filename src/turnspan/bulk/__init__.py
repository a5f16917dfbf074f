"""Many sessions at once: plan, process pool, backfill, dry run, verify, retention.

`plan` selects sessions; `runner` hands them to the processes of `pool`; `backfill` and `dry_run` are the two kinds of
work on one session. `verify` compares and repairs, `report` turns every result into lines. Everything that is sent
goes through `ship`. This room prints nothing.
"""
