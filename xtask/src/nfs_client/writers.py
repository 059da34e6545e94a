"""Writers on a mount, until the input ends: writers.py DIRECTORY COUNT. Prints the number of a writer after
each of its rounds. It is a process of its own: exec(2) waits for the mounts of the files that it closes."""
import os
import sys
import threading


def record(writer, number):
    return bytes((at ^ number * 31 ^ writer * 77) & 255 for at in range(9000))


def durable(path, flags, contents):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    assert os.write(file, contents) == len(contents)
    os.fsync(file)
    os.close(file)


def one_round(place, writer, number):
    """Every call must succeed, and have its effect exactly once."""
    new, name = f"{place}/new", f"{place}/record{number}"
    durable(new, os.O_EXCL, record(writer, number))
    os.rename(new, name)
    durable(f"{place}/log", os.O_APPEND, b"%08d\n" % number)
    # This one is closed and not synced: a write delegation defers the rest.
    plain = f"{place}/plain{number}"
    with open(plain, "xb") as file:
        file.write(record(writer, number))
    os.utime(plain, (1, number))
    os.mkdir(f"{place}/sub")
    os.link(name, f"{place}/link")
    os.rename(f"{place}/link", f"{place}/sub/link")
    os.unlink(f"{place}/sub/link")
    os.rmdir(f"{place}/sub")
    if number >= 10:
        os.unlink(f"{place}/record{number - 10}")
        os.unlink(f"{place}/plain{number - 10}")


def write(place, writer):
    number = 0
    while not over.is_set():
        try:
            one_round(place, writer, number)
        except BaseException as error:
            print(f"error: writer {writer}, round {number}: {error!r}", flush=True)
            os._exit(1)
        number += 1
        print(writer, flush=True)


over = threading.Event()
threads = []
for nth in range(int(sys.argv[2])):
    directory = f"{sys.argv[1]}/w{nth}"
    os.mkdir(directory)
    threads.append(threading.Thread(target=write, args=(directory, nth)))
for thread in threads:
    thread.start()
sys.stdin.read()
over.set()
for thread in threads:
    thread.join()
