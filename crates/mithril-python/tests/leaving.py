"""How a rank of a process group ends."""

import os
import sys
from typing import NoReturn

import torch.distributed as dist


def leave() -> NoReturn:
    """Ends the process group and this process, whose rules have all held.

    Threads of gloo may still hold tensors that Python made. Where the interpreter ends before they let go of them, torch
    aborts now and then (described in pytorch's pull request 179291), so the interpreter is not taken down.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
