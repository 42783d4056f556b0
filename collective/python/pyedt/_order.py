"""Which sample is where: the twin of include/shoal/permute.h, in NumPy, so that a data epoch is permuted in a few calls.

Positions 0..n-1 of a data epoch are a keyed permutation of the samples; mini-batch m holds the positions from m * b."""

import numpy as np

MASK = 0xFFFFFFFFFFFFFFFF
CHUNK = 1 << 16  # positions permuted at a time: a few milliseconds, 512 KiB


def mix64(z):
    z &= MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def mix64_array(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def permute(job_seed, data_epoch, n, positions):
    """The samples at `positions` (a uint64 array, each below n) of data epoch `data_epoch`."""
    positions = np.asarray(positions, dtype=np.uint64)
    if n < 2:
        return np.zeros_like(positions)
    half = 1
    while half < 32 and (1 << (2 * half)) < n:
        half += 1
    key = mix64(job_seed + 0x9E3779B97F4A7C15 * (data_epoch + 1))
    keys = [np.uint64((key + (turn + 1) * 0xD1B54A32D192ED03) & MASK) for turn in range(6)]
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    out = positions.copy()
    todo = np.arange(len(out))
    while len(todo):  # cycle walking: the domain is below 4n, so few are left after each turn
        x = out[todo]
        left, right = x >> shift, x & mask
        for k in keys:
            left, right = right, left ^ (mix64_array(k + right) & mask)
        x = left << shift | right
        out[todo] = x
        todo = todo[x >= np.uint64(n)]
    return out


def sample_sum(job_seed, samples):
    """Two halves of the keyed sum over the samples of a mini-batch: independent of their order."""
    key = mix64(job_seed ^ 0x5851F42D4C957F2D)
    ids = np.asarray(samples, dtype=np.uint64)
    with np.errstate(over="ignore"):
        low = mix64_array(np.uint64(key) + ids * np.uint64(0x9E3779B97F4A7C15)).sum(dtype=np.uint64)
        high = mix64_array(np.uint64(~key & MASK) + ids * np.uint64(0xC2B2AE3D27D4EB4F)).sum(dtype=np.uint64)
    return int(low), int(high)


def minibatch_count(n, b):
    count = (n + b - 1) // b
    return count - 1 if n > b and b > 1 and n % b == 1 else count


def minibatch_len(n, b, m):
    return b if m + 1 < minibatch_count(n, b) else n - m * b


def step_seed(job_seed, data_epoch, step, v):
    """The seed of mini-batch v of a step: torch takes 64 bits, NumPy the low 32."""
    return mix64(mix64(mix64(job_seed ^ 0x2545F4914F6CDD1D) + data_epoch) + mix64((step << 16) + v))


class Order:
    """The samples of mini-batches, permuted in chunks as they are asked for."""

    def __init__(self, job_seed, n, b):
        self.job_seed, self.n, self.b = job_seed, n, b
        self.count = minibatch_count(n, b)
        self._chunk = (None, None)
        self._samples = None

    def minibatch(self, data_epoch, m):
        """The ids of mini-batch m of a data epoch, a list of ints."""
        begin = m * self.b
        end = begin + minibatch_len(self.n, self.b, m)
        ids = []
        while begin < end:
            chunk = begin // CHUNK
            stop = min(end, (chunk + 1) * CHUNK)
            ids += self._get(data_epoch, chunk)[begin - chunk * CHUNK:stop - chunk * CHUNK].tolist()
            begin = stop
        return ids

    def _get(self, data_epoch, chunk):
        if self._chunk != (data_epoch, chunk):
            positions = np.arange(chunk * CHUNK, min(self.n, (chunk + 1) * CHUNK), dtype=np.uint64)
            with np.errstate(over="ignore"):
                self._samples = permute(self.job_seed, data_epoch, self.n, positions)
            self._chunk = (data_epoch, chunk)
        return self._samples
