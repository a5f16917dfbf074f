"""`turnspan` as the pages call it; a command that serves a page until Ctrl-C is stopped when its URL is printed."""

import subprocess
import sys

COMMAND = [sys.executable, "-m", "turnspan", *sys.argv[1:]]
if sys.argv[1:2] not in (["view"], ["demo"]):
    sys.exit(subprocess.run(COMMAND, check=False).returncode)
serving = subprocess.Popen([*COMMAND, "--no-browser"], stdout=subprocess.PIPE, text=True)
for line in serving.stdout:
    print(line, end="")
    if line.startswith("http://127.0.0.1:"):
        break
else:
    sys.exit("no URL was printed")
serving.terminate()
serving.wait(20)
