"""The precision of float32 products on a GPU."""

import torch

from ops.cuda.tracing import constant_when_traced


@constant_when_traced
def tf32_allowed() -> bool:
    """Whether float32 may be rounded to tf32, as torch is set for products on a GPU: by
    torch.set_float32_matmul_precision or torch.backends.cuda.matmul.fp32_precision."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # what torch answers once the newer of the two was used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"
