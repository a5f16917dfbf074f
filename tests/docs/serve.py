"""Run `turnspan view` or `demo` without a browser, and stop it when its URL is printed."""

import subprocess
import sys

serving = subprocess.Popen(
    [sys.executable, "-m", "turnspan", *sys.argv[1:], "--no-browser"], stdout=subprocess.PIPE, text=True
)
for line in serving.stdout:
    print(line, end="")
    if line.startswith("http://127.0.0.1:"):
        break
else:
    sys.exit("no URL was printed")
serving.terminate()
serving.wait(20)
