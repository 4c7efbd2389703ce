"""Addresses of other frameworks' arrays, by DLPack alone."""

import ctypes


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, which a DLManagedTensor begins with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


CUDA = 2
_get = ctypes.pythonapi.PyCapsule_GetPointer
_get.restype, _get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def address(array) -> int:
    """Of an array on a GPU without gaps, which must live on."""
    capsule = array.__dlpack__()
    tensor = _Tensor.from_address(_get(capsule, b"dltensor"))
    assert tensor.device_type == CUDA
    shape = tensor.shape[: tensor.ndim]
    assert tuple(shape) == tuple(array.shape)
    strides = tensor.strides[: tensor.ndim] if tensor.strides else None
    step, dense = 1, []
    for size in reversed(shape):
        dense.insert(0, step)
        step *= size
    if strides:
        assert all(a == b for a, b, n in zip(strides, dense, shape, strict=True) if n > 1)
    return tensor.data + tensor.byte_offset
