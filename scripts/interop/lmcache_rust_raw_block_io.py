"""Stands in for the native module of the reference's raw_block, which its wheel does not bring.

reference-adapter.py finds it because it lies beside it. Plain reads and writes, one at a time.
"""

import os


class RawBlockDevice:
    def __init__(self, path, **_options):
        self.fd = os.open(path, os.O_RDWR)

    def size_bytes(self):
        return os.lseek(self.fd, 0, os.SEEK_END)

    def pwrite_from_buffer(self, offset, buffer, payload_len, total_len):
        payload = bytes(memoryview(buffer).cast("B")[:payload_len])
        os.pwrite(self.fd, payload.ljust(total_len, b"\0"), offset)

    def pread_into(self, offset, buffer, payload_len, total_len):
        payload = os.pread(self.fd, total_len, offset)[:payload_len]
        memoryview(buffer).cast("B")[: len(payload)] = payload

    def fixed_buffer_status(self):
        return (False, 0)

    def close(self):
        os.close(self.fd)
