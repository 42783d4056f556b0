"""What a warm interpreter becomes where `python -m pyedt.engine_server` would be executed (node/runner/warm.h, W4)."""

from pyedt import engine_server

if __name__ == "__main__":  # not where multiprocessing imports it again
    engine_server.main()
