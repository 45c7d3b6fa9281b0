#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Makes the images of this folder and the pixels that Pillow reads from them.

NAME.jpg, NAME.png: images of 17 x 13. NAME.rgb, NAME.grey: expected pixels, row by row, of
Image.convert("RGB") and of that converted to "L". Files of other formats have no pixels: they are
to be refused. Run with Debian's python3-pil; the result is committed.
"""
import os
import random
import struct
import zlib
from PIL import Image

W, H = 17, 13
here = os.path.dirname(os.path.abspath(__file__))
random.seed(2)


def at(name):
    return os.path.join(here, name)


def smooth(mode, bands):
    """Gradients with some noise: like a picture, so that JPEG has something to do."""
    data = bytearray()
    for y in range(H):
        for x in range(W):
            for b in range(bands):
                v = (x * (11 + 3 * b) + y * (7 + 5 * b) + b * 60) % 256
                data.append((v + random.randrange(20)) % 256)
    return Image.frombytes(mode, (W, H), bytes(data))


def expect(name, rgb):
    stem = at(name.rsplit(".", 1)[0])
    open(stem + ".rgb", "wb").write(rgb.tobytes())
    open(stem + ".grey", "wb").write(rgb.convert("L").tobytes())


def save(name, image, **options):
    image.save(at(name), **options)
    expect(name, Image.open(at(name)).convert("RGB"))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(name, depth, colour, rows, more=b""):
    """A PNG written by hand: 16 bits in colour, which Pillow does not write."""
    raw = b"".join(b"\0" + r for r in rows)
    open(at(name), "wb").write(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, depth, colour, 0, 0, 0))
        + more + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""))


def deep(name, colour, bands, keep):
    """16 bits: expected is round(v * 255 / 65535), the first `keep` bands."""
    rows, pixels = [], bytearray()
    for _ in range(H):
        row = b""
        for _ in range(W):
            v = [random.randrange(65536) for _ in range(bands)]
            row += struct.pack(">%dH" % bands, *v)
            pixels += bytes((x * 255 + 32767) // 65535 for x in v[:keep])
        rows.append(row)
    png(name, 16, colour, rows)
    expect(name, Image.frombytes("L" if keep == 1 else "RGB", (W, H), bytes(pixels)).convert("RGB"))


save("rgb444.jpg", smooth("RGB", 3), quality=90, subsampling=0)
save("rgb420.jpg", smooth("RGB", 3), quality=80, subsampling=2)
save("progressive.jpg", smooth("RGB", 3), quality=85, progressive=True)
save("grey.jpg", smooth("L", 1), quality=90)
save("cmyk.jpg", smooth("CMYK", 4), quality=90)
save("rgb.png", smooth("RGB", 3))
save("grey8.png", smooth("L", 1))
save("bits1.png", smooth("L", 1).convert("1"))
save("palette.png", smooth("RGB", 3).quantize(200))
save("palette4.png", smooth("RGB", 3).quantize(12), bits=4)
save("rgba.png", smooth("RGBA", 4))
save("la.png", smooth("LA", 2))
trns = smooth("RGB", 3).quantize(30)
save("transparent.png", trns, transparency=3)
deep("grey16.png", 0, 1, 1)
deep("rgb16.png", 2, 3, 3)
deep("rgba16.png", 6, 4, 3)
# 2 bits: 0, 85, 170, 255
rows, pixels = [], bytearray()
for _ in range(H):
    v = [random.randrange(4) for _ in range(W)] + [0] * 3
    rows.append(bytes(v[i] << 6 | v[i + 1] << 4 | v[i + 2] << 2 | v[i + 3] for i in range(0, 20, 4)))
    pixels += bytes(x * 85 for x in v[:W])
png("bits2.png", 2, 0, rows)
expect("bits2.png", Image.frombytes("L", (W, H), bytes(pixels)).convert("RGB"))

for name in ("picture.bmp", "picture.gif", "picture.webp", "picture.tiff"):
    smooth("RGB", 3).save(at(name))
