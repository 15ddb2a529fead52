#!/usr/bin/env python3
"""Makes the picture at the top of the README, docs/pictures/hero.png: 1F1B above ZBVZeroBubble on one
axis, as `weft show` writes them, in Chromium, with an idle gap selected. Run it after a change of the
timeline's page, and look at the picture:

    tools/hero-picture.py build/weft docs/pictures/hero.png
"""

import os
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "browser"))
sys.dont_write_bytecode = True
from webdriver import Browser  # noqa: E402

WIDTH, HEIGHT = 1180, 660


def make_page(weft, folder):
    names = []
    for name in ("1F1B", "ZBVZeroBubble"):
        names.append(f"{name}.csv")
        subprocess.run([weft, "gen", name, "-p", "4", "-m", "8", "-o", names[-1]], cwd=folder, check=True)
    subprocess.run([weft, "show", *names, "-o", "hero.html"], cwd=folder, check=True)
    return os.path.join(folder, "hero.html")


def take(page, path):
    with Browser(WIDTH, HEIGHT + 200) as browser:
        browser.emulate_screen(1, WIDTH, HEIGHT)
        browser.open(page)
        browser.run("weftTimeline.showGap(0, 0, 0)")
        browser.frame()
        browser.screenshot(path)


def unfiltered(data, width, height, channels):
    """The rows of a PNG's data without its filters (PNG specification, 9.2)."""
    rows, before, size = [], bytearray(width * channels), width * channels
    for y in range(height):
        kind = data[y * (size + 1)]
        row = bytearray(data[y * (size + 1) + 1:(y + 1) * (size + 1)])
        for x in range(size):
            left = row[x - channels] if x >= channels else 0
            up, corner = before[x], before[x - channels] if x >= channels else 0
            if kind == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
            else:
                near = (0, left, up, (left + up) // 2)[kind]
            row[x] = (row[x] + near) & 255
        rows.append(bytes(row))
        before = row
    return rows


def shrink(path):
    """Half as many bytes: plain areas compress best without filters, and 5 bits of a colour are enough."""
    with open(path, "rb") as file:
        content = file.read()
    at, data = 8, b""
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at:at + 8])
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", content[at + 8:at + 18])
        elif kind == b"IDAT":
            data += content[at + 8:at + 8 + size]
        at += size + 12
    channels = {2: 3, 6: 4}[colour]
    coarse = bytes(min(255, (value + 4) // 8 * 8) for value in range(256))
    rows = [row.translate(coarse) for row in unfiltered(zlib.decompress(data), width, height, channels)]
    rgb = [bytes(value for k, value in enumerate(row) if k % channels < 3) for row in rows]

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rgb), 9)) + chunk(b"IEND", b""))


def main():
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} WEFT PICTURE")
    weft, picture = map(os.path.abspath, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        take(make_page(weft, folder), picture)
    shrink(picture)


if __name__ == "__main__":
    main()
