"""One L2 adapter of the installed lmcache, driven by lines of JSON.

    reference-adapter.py '<JSON of the adapter>'

The first line out is {"release": ...}. Then one answer per line in:
    {"do": "store", "objects": [{"key": ..., "size": n, "seed": s}]}
                                            {"stored": bool, "seconds": s}
    {"do": "lookup", "keys": [...]}                                     {"found": [bool]}
    {"do": "load", "objects": [...]}        {"loaded": [bool], "equal": [bool], "seconds": s}
    {"do": "delete", "keys": [...]}                                     {}
Byte i of a value is (31 * i + (i >> 8) + seed) & 255.
"""

import importlib.metadata
import json
import sys
import time

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

ALIGN = 4096
DEADLINE_S = 30
RELEASE = importlib.metadata.version("lmcache")
# Lookups take one layout per object group since 0.5.6.
BY_GROUP = tuple(int(part) for part in RELEASE.split(".")[:3]) >= (0, 5, 6)


def memory(size):
    """A buffer as L1 hands it out: aligned, and padded to the alignment."""
    padded = (size + ALIGN - 1) // ALIGN * ALIGN
    whole = torch.zeros(padded + ALIGN, dtype=torch.uint8)
    start = -whole.data_ptr() % ALIGN
    shape = torch.Size([size])
    facts = MemoryObjMetadata(
        shape=shape, dtype=torch.uint8, address=0, phy_size=padded, ref_count=1,
        fmt=MemoryFormat.KV_2LTD, shapes=[shape], dtypes=[torch.uint8])
    buffer = TensorMemoryObj(whole[start : start + padded], facts, None)
    return buffer, whole[start : start + size]


def content(size, seed):
    index = torch.arange(size, dtype=torch.int64)
    return ((31 * index + (index >> 8) + seed) & 255).to(torch.uint8)


def key_of(key):
    return ObjectKey(
        bytes.fromhex(key["hash"]), key["model"], key["rank"], key["group"], key["salt"])


def layouts(keys):
    layout = MemoryLayoutDesc([torch.Size([1])], [torch.uint8])
    return {key.object_group_id: layout for key in keys} if BY_GROUP else layout


def wait(poll):
    end = time.monotonic() + DEADLINE_S
    while (result := poll()) is None:
        if time.monotonic() > end:
            raise TimeoutError("no answer of the adapter")
        time.sleep(0.001)
    return result


class Adapter:
    def __init__(self, spec):
        config = get_l2_adapter_config_class(spec["type"]).from_dict(spec)
        self.inner = create_l2_adapter(config)
        self.done = {}

    def store(self, objects):
        keys = [key_of(each["key"]) for each in objects]
        buffers = [memory(each["size"]) for each in objects]
        for (_, view), each in zip(buffers, objects):
            view[:] = content(each["size"], each["seed"])
        start = time.perf_counter()
        task = self.inner.submit_store_task(keys, [buffer for buffer, _ in buffers])

        def poll():
            self.done.update(self.inner.pop_completed_store_tasks())
            return self.done.get(task)

        # Bytes that were new to the store; -1 = failed.
        result = int(wait(poll))
        return {"stored": result >= 0, "seconds": time.perf_counter() - start}

    def lookup(self, keys):
        keys = [key_of(key) for key in keys]
        task = self.inner.submit_lookup_and_lock_task(keys, layouts(keys))
        bits = wait(lambda: self.inner.query_lookup_and_lock_result(task))
        found = [bool(bits.test(i)) for i in range(len(keys))]
        self.inner.submit_unlock([key for key, is_found in zip(keys, found) if is_found])
        return {"found": found}

    def load(self, objects):
        keys = [key_of(each["key"]) for each in objects]
        buffers = [memory(each["size"]) for each in objects]
        start = time.perf_counter()
        task = self.inner.submit_load_task(keys, [buffer for buffer, _ in buffers])
        bits = wait(lambda: self.inner.query_load_result(task))
        seconds = time.perf_counter() - start
        equal = [
            bool(torch.equal(view, content(each["size"], each["seed"])))
            for (_, view), each in zip(buffers, objects)
        ]
        loaded = [bool(bits.test(i)) for i in range(len(keys))]
        return {"loaded": loaded, "equal": equal, "seconds": seconds}

    def delete(self, keys):
        self.inner.delete([key_of(key) for key in keys])
        return {}


def main():
    # What the libraries print must not get between the answers.
    answers = sys.stdout
    sys.stdout = sys.stderr

    def answer(document):
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    adapter = Adapter(json.loads(sys.argv[1]))
    answer({"release": RELEASE})
    for line in sys.stdin:
        request = json.loads(line)
        act = getattr(adapter, request["do"])
        try:
            answer(act(request.get("objects") or request.get("keys") or []))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
    adapter.inner.close()


main()
