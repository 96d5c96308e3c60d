"""What several of the scripts beside this one share."""


def every_character():
    """Blocks of 1,024 code points, each character in five surroundings."""
    blocks = list(range(0, 0x20000, 0x400)) + [0x2A400, 0x2F800, 0x30000, 0xE0000, 0xF0000, 0x10FC00]
    for first in blocks:
        chars = [chr(cp) for cp in range(first, first + 0x400) if not 0xD800 <= cp <= 0xDFFF]
        if chars:
            yield first, "".join(f"{c}x {c}{c} 1{c}a{c}\n" for c in chars)


def fnv(ids):
    """FNV-1a over the ids as little-endian 32-bit words."""
    h = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"
