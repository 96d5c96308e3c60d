"""Reads the metadata of a GGUF file (format version 3), for building other people's tokenizers."""

import struct

SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}
STRING, ARRAY = 8, 9


def metadata(path):
    """Every key of the file's metadata with its value."""
    with open(path, "rb") as file:
        def scalar(form):
            return struct.unpack(form, file.read(struct.calcsize(form)))[0]

        def value(kind):
            if kind == STRING:
                return file.read(scalar("<Q")).decode("utf-8")
            if kind == ARRAY:
                kind, count = scalar("<I"), scalar("<Q")
                return [value(kind) for _ in range(count)]
            return scalar(SCALARS[kind])

        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} does not begin with GGUF")
        version, _tensors, pairs = scalar("<I"), scalar("<Q"), scalar("<Q")
        if version != 3:
            raise ValueError(f"{path} has GGUF version {version}; 3 is read")
        found = {}
        for _ in range(pairs):
            key = value(STRING)
            found[key] = value(scalar("<I"))
        return found
