"""The commands, one module each, all by one convention.

`turnspan NAME` runs the click command `NAME` of the module `turnspan.commands.NAME`, made with `@command()` from
`declare`. `turnspan.cli` finds it by that name and imports nothing before it is needed. A command reads its arguments,
calls one other room and prints the result with `printing`; `--json` output is made in `records`. A command that is for
users also has a place in `cli.SECTIONS`. No other room prints or asks.
"""
