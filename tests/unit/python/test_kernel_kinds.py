"""Kernels of the kinds that users write: with a thread and pools of processes of their own, with a tokenizer before a network, with
pictures in JSON, with pieces of a text."""

import base64
import json
import struct
import zlib

import pytest
from test_kernel_host import host  # noqa: F401

POOLS = """
    import concurrent.futures
    import json
    import multiprocessing
    import os
    import queue
    import threading
    import time

    import redhareapiversion
    from redhareapi import Kernel


    def square(x):
        return x * x, os.getpid()


    class Pools(Kernel):
        def on_kernel_start(self, kernel_context):
            self.beats, self.work = 0, queue.Queue()
            threading.Thread(target=self.beat, daemon=True).start()
            threading.Thread(target=self.drain, daemon=True).start()
            self.pools = {kind: multiprocessing.get_context(kind).Pool(2) for kind in ("fork", "spawn", "forkserver")}
            self.executor = concurrent.futures.ProcessPoolExecutor(2)

        def beat(self):
            while True:
                self.beats += 1
                time.sleep(0.01)

        def drain(self):
            while True:
                task, done = self.work.get()
                task.set_output_data("from a thread")
                done.set()

        def on_task_invoke(self, task):
            while task is not None:
                asked = json.loads(task.get_input_data())
                if asked == "thread":
                    done = threading.Event()
                    self.work.put((task, done))
                    done.wait()
                elif asked == "executor":
                    task.set_output_data(json.dumps([one[0] for one in self.executor.map(square, range(9))]))
                else:
                    found = self.pools[asked].map(square, range(9))
                    assert os.getpid() not in {pid for _, pid in found}
                    task.set_output_data(json.dumps([one[0] for one in found]))
                task = task.next()

        def on_kernel_shutdown(self):
            for pool in self.pools.values():
                pool.terminate()
                pool.join()
            self.executor.shutdown()
            print("beats", self.beats > 0, flush=True)


    if __name__ == "__main__":
        Pools().run()
"""


def test_a_kernel_with_threads_and_pools_of_processes_answers_and_ends(host):  # noqa: F811
    one = host({"kernel.py": POOLS})
    one.ready()
    for number, kind in enumerate(("fork", "spawn", "forkserver", "executor", "fork")):
        status, _, body = one.answer(number, json.dumps(kind).encode())
        assert (status, json.loads(body)) == (200, [n * n for n in range(9)]), (kind, body, one.errors())
    assert one.answer(9, b'"thread"')[::2] == (200, b"from a thread")
    one.say("stop")
    assert one.end() == 0, one.errors()
    assert "beats True" in one.out.read_text()


TOKENS = """
    import json
    import re

    import torch
    from redhareapi import Kernel


    class Tokenizer:
        '''Words to numbers, padded to the longest of the batch, with a mask: as a tokenizer of Hugging Face is called.'''

        def __init__(self, words):
            self.numbers = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}

        def __call__(self, texts, padding=True, truncation=True, max_length=16, return_tensors="pt"):
            rows = [[self.numbers.get(word, 1) for word in re.findall(r"\\w+", text.lower())][:max_length] or [1] for text in texts]
            longest = max(map(len, rows))
            return {"input_ids": torch.tensor([row + [0] * (longest - len(row)) for row in rows]),
                    "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])}


    class Sentiment(Kernel):
        def on_kernel_start(self, kernel_context):
            torch.manual_seed(7)
            self.tokenizer = Tokenizer(["good", "bad", "ugly"])
            self.embedding = torch.nn.Embedding(5, 4)
            with torch.no_grad():
                self.embedding.weight[:, 0] = torch.tensor([0.0, 0.0, 1.0, -1.0, -1.0])

        def on_task_invoke(self, task):
            tasks = []
            while task is not None:
                tasks.append(task)
                task = task.next()
            found = self.tokenizer([json.loads(one.get_input_data())["inputs"] for one in tasks])
            with torch.inference_mode():
                mask = found["attention_mask"].unsqueeze(-1)
                scores = (self.embedding(found["input_ids"]) * mask).sum(1)[:, 0] / mask.sum(1)[:, 0]
            for one, score in zip(tasks, scores.tolist()):
                one.set_output_data(json.dumps([{"label": "POSITIVE" if score > 0 else "NEGATIVE", "score": score}], ensure_ascii=False))


    Sentiment().run()
"""


def test_a_text_kernel_with_a_tokenizer_answers_a_batch_of_texts_of_any_length(host):  # noqa: F811
    pytest.importorskip("torch")
    one = host({"kernel.py": TOKENS}, profile={"policy": {"task_batch_size": 8}})
    one.ready()
    texts = ["good", "a bad and ugly thing", "gut gemacht: good \u4f60\u597d \U0001f600", "", "good good bad " * 40]
    for number, text in enumerate(texts):
        one.infer(number, json.dumps({"inputs": text}, ensure_ascii=number % 2 == 0).encode())
    found = {frame[1]: (frame[2], json.loads(frame[4])) for frame in (one.hear() for _ in texts)}
    assert [found[number][0] for number in range(5)] == [200] * 5
    assert [found[number][1][0]["label"] for number in range(5)] == ["POSITIVE", "NEGATIVE", "POSITIVE", "NEGATIVE", "POSITIVE"]


PICTURES = """
    import base64
    import json
    import struct
    import zlib

    from redhareapi import Kernel


    def pixels(data):
        '''(width, height, rows of grey bytes) of a PNG of 8 bits without filters.'''
        if not data.startswith(bytes([137]) + b"PNG"):
            raise ValueError("this is no PNG")
        at, found, width, height = 8, b"", 0, 0
        while at < len(data):
            length, kind = struct.unpack_from(">I4s", data, at)
            if kind == b"IHDR":
                width, height = struct.unpack_from(">II", data, at + 8)
            if kind == b"IDAT":
                found += data[at + 8:at + 8 + length]
            at += 12 + length
        plain = zlib.decompress(found)
        return width, height, [plain[1 + y * (width + 1):(y + 1) * (width + 1)] for y in range(height)]


    class Pictures(Kernel):
        def on_task_invoke(self, task):
            while task is not None:
                for name in ("image", "instances"):
                    asked = json.loads(task.get_input_data()).get(name)
                    if asked is not None:
                        break
                text = asked if isinstance(asked, str) else asked[0]["b64"]
                width, height, rows = pixels(base64.b64decode(text.rpartition("base64,")[2], validate=True))
                task.set_output_data(json.dumps({"width": width, "height": height, "mean": sum(map(sum, rows)) / (width * height)}))
                task = task.next()


    Pictures().run()
"""


def png(width, height, level):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes([level]) * width for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b""))


def test_a_kernel_takes_pictures_in_json_and_a_wrong_one_costs_itself(host):  # noqa: F811
    one = host({"kernel.py": PICTURES})
    one.ready()
    text = base64.b64encode(png(1200, 900, 77)).decode()  # a megabyte
    for asked in ({"image": text}, {"image": "data:image/png;base64," + text}, {"instances": [{"b64": text}]}):
        status, headers, body = one.answer(1, json.dumps(asked).encode())
        assert (status, json.loads(body)) == (200, {"width": 1200, "height": 900, "mean": 77.0})
        assert headers["content_type"] == "application/json"
    status, _, body = one.answer(2, json.dumps({"image": base64.b64encode(b"GIF89a").decode()}).encode())
    assert status == 500 and b"this is no PNG" in body
    assert one.answer(3, json.dumps({"image": text}).encode())[0] == 200
