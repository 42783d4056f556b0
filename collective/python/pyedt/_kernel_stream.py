"""Kernels whose on_task_invoke is a generator: each piece that it yields is one message of the answer.

    tasks --start--> generators --one piece of each in turn--> parts --> ... --> done

G1. All generators run on the main thread, in turns of one piece. One whose client does not read is passed over until it does.
G2. A request that comes while others are answered joins them, up to the batch.
G3. A generator whose client is gone, or whose time is over, is closed. An exception costs its own request.
G4. Where the answer is wanted whole, it is the pieces one after the other."""

import json
import sys
import traceback

from pyedt import _kernel_link, _kernel_serve


def to_bytes(piece):
    """Text, bytes, or what JSON has."""
    if isinstance(piece, (bytes, bytearray, memoryview)):
        return bytes(piece)
    return (piece if isinstance(piece, str) else json.dumps(piece)).encode("utf-8", "surrogateescape")


class Answer:
    """One generator, and what it has made."""

    def __init__(self, task, pieces):
        self.task, self._pieces, self._whole, self._size = task, pieces, [], 0
        self._parts = task.streams()
        task.reached = True

    def may_go_on(self):
        task = self.task
        return not self._parts or task.credit > 0 or not task.streams() or task.late()

    def step(self):
        """True: there is more to come."""
        task = self.task
        try:
            if task.answered:  # it has called set_output_data
                self._pieces.close()
            elif task.late():
                self._end(504, "the deadline passed while the answer was made")
            elif task.cancelled or task.connection.lost:
                self._end(499, "cancelled")
            else:
                return self._take(to_bytes(next(self._pieces)))
        except StopIteration as stop:
            self._finish(stop.value)
        except Exception as error:
            traceback.print_exc()
            sys.stderr.flush()
            task.refuse(500, _kernel_serve.last_line(error))
        return False

    def _take(self, piece):
        if self._parts:
            self.task.part(piece)
            return True
        self._size += len(piece)
        if self._size > _kernel_link.BODY_BYTES_MAX:
            raise ValueError("the answer has more than %d bytes" % _kernel_link.BODY_BYTES_MAX)
        self._whole.append(piece)
        return True

    def _end(self, status, text):
        self._pieces.close()
        self.task.refuse(status, text)

    def _finish(self, value):
        last = b"" if value is None else to_bytes(value)
        data = b"".join(self._whole) + last
        self.task.answer(200, {"content_type": _kernel_serve.content_type_of(data)}, data)


def run(server, batch, start):
    """Until all are answered, those that have joined meanwhile, too."""
    running = [Answer(task, start(task)) for task in batch]
    while running:
        able = [answer for answer in running if answer.may_go_on()]
        server.look(0 if able else _kernel_serve.LOOK_S)
        for answer in able:
            server.busy()
            if not answer.step():
                running.remove(answer)
        running.extend(Answer(task, start(task)) for task in server.join())
