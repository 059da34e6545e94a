"""Locks and mappings between two mounts of one server: work.py locks|mapped ONE OTHER, or
work.py with_other ONE ROUNDS beside another program that counts in the same file."""
import fcntl
import mmap
import os
import sys
import threading
import time


def refused(file, kind, length, start):
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB, length, start)
    except BlockingIOError:
        return True
    fcntl.lockf(file, fcntl.LOCK_UN, length, start)
    return False


def opened(place, name):
    return os.open(os.path.join(place, name), os.O_RDWR | os.O_CREAT, 0o644)


def locks(one, other):
    a, b = opened(one, "locked"), opened(other, "locked")
    fcntl.lockf(a, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
    assert refused(b, fcntl.LOCK_EX, 10, 5) and refused(b, fcntl.LOCK_SH, 1, 9)
    fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
    assert refused(a, fcntl.LOCK_SH, 1, 19) and not refused(a, fcntl.LOCK_SH, 1, 20)
    # A part is unlocked, and a shared one is shared.
    fcntl.lockf(a, fcntl.LOCK_UN, 4, 3)
    assert not refused(b, fcntl.LOCK_EX, 4, 3) and refused(b, fcntl.LOCK_EX, 1, 2)
    fcntl.lockf(a, fcntl.LOCK_SH, 3, 0)
    assert not refused(b, fcntl.LOCK_SH, 3, 0) and refused(b, fcntl.LOCK_EX, 3, 0)
    fcntl.lockf(a, fcntl.LOCK_UN)
    fcntl.lockf(b, fcntl.LOCK_UN)
    # One waits for the other, and reads what it wrote.
    fcntl.lockf(a, fcntl.LOCK_EX)
    got = []

    def wait():
        fcntl.lockf(b, fcntl.LOCK_EX)
        got.append(os.pread(b, 100, 0))

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.5)
    assert not got
    os.pwrite(a, b"under the lock", 0)
    fcntl.lockf(a, fcntl.LOCK_UN)
    waiter.join(60)
    assert got == [b"under the lock"], got
    os.close(b)
    assert not refused(a, fcntl.LOCK_EX, 0, 0), "a close unlocks"
    # flock: shared and exclusive.
    a2, b2 = opened(one, "flocked"), opened(other, "flocked")
    fcntl.flock(a2, fcntl.LOCK_SH)
    fcntl.flock(b2, fcntl.LOCK_SH | fcntl.LOCK_NB)
    try:
        fcntl.flock(b2, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise AssertionError("two owners")
    except BlockingIOError:
        pass
    # Processes on both mounts count in one file.
    count(one, other)


def count(one, other, rounds=100):
    file = opened(one, "counted")
    os.write(file, b"0")
    os.close(file)
    children = []
    for place in (one, other):
        child = os.fork()
        if child == 0:
            file = os.open(os.path.join(place, "counted"), os.O_RDWR)
            for _ in range(rounds):
                fcntl.lockf(file, fcntl.LOCK_EX)
                number = int(os.pread(file, 20, 0))
                os.pwrite(file, b"%d" % (number + 1), 0)
                fcntl.lockf(file, fcntl.LOCK_UN)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    with open(os.path.join(other, "counted"), "rb") as file:
        counted = int(file.read())
    assert counted == 2 * rounds, counted
    print(f"two processes, one on each client, count to {counted} under locks")


def mapped(one, other):
    size = 300_000
    path = os.path.join(one, "mapped")
    with open(path, "w+b") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as bytes_:
            bytes_[:5] = b"first"
            bytes_[200_000:200_006] = b"second"
            bytes_.flush()
            bytes_[size - 4:] = b"last"
    with open(os.path.join(other, "mapped"), "r+b") as file:
        whole = file.read()
        assert len(whole) == size, len(whole)
        assert whole[:5] == b"first" and whole[200_000:200_006] == b"second" and whole[-4:] == b"last"
        assert whole.count(0) == size - 15
        with mmap.mmap(file.fileno(), size) as bytes_:
            assert bytes_[200_000:200_006] == b"second"
            bytes_[100:105] = b"other"
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as bytes_:
        assert bytes_[100:105] == b"other"
    print(f"each client maps {size} bytes and sees what the other has written")


def with_other(place, rounds):
    file = os.open(os.path.join(place, "counted"), os.O_RDWR)
    for _ in range(int(rounds)):
        fcntl.lockf(file, fcntl.LOCK_EX)
        os.pwrite(file, b"%d\n" % (int(os.pread(file, 20, 0)) + 1), 0)
        fcntl.lockf(file, fcntl.LOCK_UN)
    os.close(file)


if __name__ == "__main__":
    {"locks": locks, "mapped": mapped, "with_other": with_other}[sys.argv[1]](sys.argv[2], sys.argv[3])
