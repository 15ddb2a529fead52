#!/usr/bin/env python3
"""Makes the picture at the top of the README, docs/pictures/hero.png: 1F1B above ZBVZeroBubble on one
axis, as `weft show` writes them, in Chromium, with an idle gap selected. Run it after a change of the
timeline's page, and look at the picture:

    tools/hero-picture.py [--check] build/weft docs/pictures/hero.png

The file also holds the words that the page had. --check makes no picture: it ends with 1 if today's
page has other words.
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
    """The words of the page; with a path also its picture."""
    with Browser(WIDTH, HEIGHT + 200) as browser:
        browser.emulate_screen(1, WIDTH, HEIGHT)
        browser.open(page)
        browser.run("weftTimeline.showGap(0, 0, 0)")
        browser.frame()
        if path:
            browser.screenshot(path)
        return " ".join(browser.text("body").split())


def chunks(path):
    """Kind and content of each part of a PNG."""
    with open(path, "rb") as file:
        content = file.read()
    at = 8
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at:at + 8])
        yield kind, content[at + 8:at + 8 + size]
        at += size + 12


WORDS_HEAD = b"Description\0\0\0\0\0"  # a text in UTF-8, not compressed (PNG specification, 11.3.4.5)


def words_in(path):
    """The words of the page that the picture was made from; none in a picture that is not from here."""
    texts = [body[len(WORDS_HEAD):] for kind, body in chunks(path) if kind == b"iTXt" and body.startswith(WORDS_HEAD)]
    return texts[0].decode() if texts else ""


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


def shrink(path, words):
    """Half as many bytes: plain areas compress best without filters, and 5 bits of a colour are enough."""
    data = b""
    for kind, body in chunks(path):
        if kind == b"IHDR":
            width, height, _, colour = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            data += body
    channels = {2: 3, 6: 4}[colour]
    coarse = bytes(min(255, (value + 4) // 8 * 8) for value in range(256))
    rows = [row.translate(coarse) for row in unfiltered(zlib.decompress(data), width, height, channels)]
    rgb = [bytes(value for k, value in enumerate(row) if k % channels < 3) for row in rows]

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                   + chunk(b"iTXt", WORDS_HEAD + words.encode())
                   + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rgb), 9)) + chunk(b"IEND", b""))


def main():
    arguments = sys.argv[1:]
    check = arguments[:1] == ["--check"]
    if len(arguments) != 2 + check:
        sys.exit(f"usage: {sys.argv[0]} [--check] WEFT PICTURE")
    weft, picture = map(os.path.abspath, arguments[check:])
    with tempfile.TemporaryDirectory() as folder:
        words = take(make_page(weft, folder), None if check else picture)
    if not check:
        shrink(picture, words)
    elif words != words_in(picture):
        sys.exit(f"{picture} is not of today's page; make it again: {sys.argv[0]} {' '.join(arguments[1:])}\n"
                 f"in the picture: {words_in(picture)}\ntoday: {words}")


if __name__ == "__main__":
    main()
