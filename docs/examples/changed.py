#!/usr/bin/env python3
"""Tells whether a file changed since this program last ran.

usage: changed.py FILE NOTE

NOTE keeps what the last run saw. Exit code: 0 unchanged, 1 changed or seen for the first time, 2 error.
The programs in C and Rust beside this one do the same and share the form of NOTE.
"""

import json
import os
import sys


def ask(path, name):
    return os.getxattr(path, "system.ivers." + name).decode()


def query(path):
    """Everything that two equal notes must agree on."""
    mount = json.loads(ask(path, "mount"))
    # "instance" tells filesystems apart; where values do not outlive a mount it also tells mounts apart.
    return f"{mount['instance']} {os.stat(path).st_ino} {ask(path, 'generation')} {ask(path, 'change')}\n"


def check(path, note):
    try:
        with open(note) as file:
            kept = file.read()
    except FileNotFoundError:
        kept = ""
    while True:
        before = query(path)
        if before == kept:
            return 0
        with open(path, "rb") as file:
            contents = file.read()  # whatever the program does with the file
        if query(path) == before:  # the contents belong to this value
            break
    print(f"{path}: changed, {len(contents)} bytes now" if kept else f"{path}: new, {len(contents)} bytes")
    with open(note, "w") as file:
        file.write(before)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(check(*sys.argv[1:]))
    except (OSError, TypeError) as error:
        print(f"changed: {error}", file=sys.stderr)
        print("usage: changed.py FILE NOTE; FILE must be on an ivers mount", file=sys.stderr)
        sys.exit(2)
