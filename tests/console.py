"""A person at a terminal: types at a program that has a terminal of its own, and reads what it shows.

    console.py STEP... -- COMMAND...

STEP is `see:TEXT` (wait until TEXT has been shown since the last step), `type:TEXT` (and Enter), `keys:TEXT` (as it is; Ctrl-C is
`\\x03`), `more:N` (wait for N more characters) or `ends:CODE` (the program ends with that code). `raw`, as the first one, is for Wine, whose
console takes keys as they are but leaves the terminal in the mode it finds. All that was shown goes to standard output; blanks that a program
jumps over are missing. Fails, and ends the program, at the first step that takes longer than three minutes.
"""

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
import tty
from fcntl import ioctl

PATIENCE = 180
# What moves the cursor and colours letters, in the words of terminals.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f]")


def main():
    at = sys.argv.index("--")
    steps, command = sys.argv[1:at], sys.argv[at + 1 :]
    child, terminal = pty.fork()
    if child == 0:
        if steps[:1] == ["raw"]:
            tty.setraw(0)
        os.execvp(command[0], command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    shown, read = bytearray(), 0

    def text():
        return CONTROL.sub("", shown[read:].decode(errors="replace"))

    def listen():
        """Takes what is shown next; false at the end."""
        if not select.select([terminal], [], [], 0.1)[0]:
            return True
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            return False
        shown.extend(piece)
        return bool(piece)

    def until(done, step):
        end = time.monotonic() + PATIENCE
        while not done():
            if not listen() and not done():
                fail(f"{step}: the program ended")
            if time.monotonic() > end:
                fail(f"{step}: not within {PATIENCE} s")

    def fail(why):
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        sys.stdout.write(CONTROL.sub("", shown.decode(errors="replace")) + "\n")
        sys.exit(f"console.py: {why}")

    for step in steps:
        kind, _, value = step.partition(":")
        if step == "raw":
            continue
        if kind == "see":
            until(lambda: value in text(), step)
            read = len(shown)
        elif kind == "more":
            until(lambda: len(text()) >= int(value), step)
            read = len(shown)
        elif kind in ("type", "keys"):
            os.write(terminal, value.encode().decode("unicode_escape").encode("latin-1") if kind == "keys" else value.encode() + b"\r")
        elif kind == "ends":
            end = time.monotonic() + PATIENCE
            while listen() and time.monotonic() < end:
                pass
            ended, status = os.waitpid(child, os.WNOHANG)
            while not ended and time.monotonic() < end:
                time.sleep(0.05)
                ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                fail(f"{step}: it goes on")
            code = os.waitstatus_to_exitcode(status)
            if code != int(value):
                fail(f"{step}: it ended with {code}")
        else:
            sys.exit(f"console.py: {step} is no step")
    sys.stdout.write(CONTROL.sub("", shown.decode(errors="replace")) + "\n")


main()
