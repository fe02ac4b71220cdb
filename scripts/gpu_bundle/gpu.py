"""The GPU as the driver describes it; torch is not imported."""

import ctypes

# Numbers in cuda.h.
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76
NO_DEVICE = 100


class NoGpu(Exception):
    """Why there is none that programs can use."""


def find_gpu(number):
    """(name, compute capability as in "9.0") of the GPU with this number."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoGpu("no GPU on this machine (no libcuda.so.1)") from None

    def call(function, *arguments):
        error = getattr(driver, function)(*arguments)
        if error != 0:
            raise NoGpu("no GPU on this machine" if error == NO_DEVICE else f"no usable GPU: {function} fails with {error}")

    device, value, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), number)
    call("cuDeviceGetName", name, len(name), device)
    parts = []
    for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR):
        call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        parts.append(str(value.value))
    return name.value.decode(), ".".join(parts)


def check_code(gpu, architectures):
    """NoGpu unless programs with code for `architectures`, as in "80;90a", run on `gpu`."""
    name, capability = gpu
    major, minor = map(int, capability.split("."))
    for architecture in architectures.split(";"):
        own_major, own_minor = divmod(int(architecture.rstrip("a")), 10)
        # Code runs on later devices of its generation; that of a name with an `a` on no other device.
        if own_major == major and (own_minor == minor or (own_minor < minor and not architecture.endswith("a"))):
            return
    raise NoGpu(f"{name} has compute capability {capability}; these programs have code for {architectures} alone")
