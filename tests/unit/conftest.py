"""What several unit tests stand on."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_thread():
    """Torch with one thread: the order of its sums is then fixed."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
