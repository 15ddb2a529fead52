"""What a browser printed, as far as the tests look into a PDF: its pages, and the pixels of the
images in it. Chromium writes a canvas as drawing commands and images, without predictors."""

import re
import zlib

HEAD = re.compile(rb"<<((?:[^<>]|<<[^<>]*>>|<[0-9A-Fa-f]*>)*)>>\s*stream\r?\n")


def page_sizes(pdf):
    """Width and height of each page, in points."""
    boxes = re.findall(rb"/MediaBox\s*\[\s*0 0 ([\d.]+) ([\d.]+)\s*\]", pdf)
    return [(float(width), float(height)) for width, height in boxes]


def images(pdf):
    """The pixels of each image in colour that nothing shines through: red, green, blue, one after
    the other."""
    found = []
    for head in HEAD.finditer(pdf):
        fields = head.group(1)
        is_colour = b"/Subtype /Image" in fields and b"/DeviceGray" not in fields and b"/SMask" not in fields
        if not is_colour or b"/FlateDecode" not in fields:
            continue
        length = int(re.search(rb"/Length (\d+)", fields).group(1))
        found.append(zlib.decompress(pdf[head.end():head.end() + length]))
    return found


def pixels_of(pdf, colour):
    """How many pixels of all images have this colour, (red, green, blue)."""
    wanted = bytes(colour)
    return sum(sum(1 for i in range(0, len(data) - 2, 3) if data[i:i + 3] == wanted) for data in images(pdf))
