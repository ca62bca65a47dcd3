"""Runs a program on a terminal and types a line at each prompt of the debugger.

`debugger.py LINES PROGRAM ARGUMENTS…`: LINES are separated by `|`; `^C` is typed as the key, and
typed again where nothing answers it, as a user would. Everything that arrives at the terminal is
printed, and the exit code is the program's.
"""

import os
import pty
import select
import sys
import time

PROMPT = b"(Pdb) "
PATIENCE = 120.0
INTERRUPT = b"\x03"


def main() -> int:
    lines = sys.argv[1].split("|")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.argv[2], sys.argv[2:])
    seen = b""
    asked = 0
    interrupting = False
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1.0)[0]:
            # CPython notices a key that comes between its prompt and its wait for input only with
            # the next one.
            if interrupting:
                os.write(terminal, INTERRUPT)
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
        while lines and seen.count(PROMPT) > asked:
            asked += 1
            line = lines.pop(0)
            interrupting = line == "^C"
            os.write(terminal, INTERRUPT if interrupting else line.encode() + b"\n")
    else:
        os.kill(pid, 9)
    sys.stdout.buffer.write(seen.replace(b"\r\n", b"\n"))
    sys.stdout.flush()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


sys.exit(main())
