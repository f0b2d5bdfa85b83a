"""Forms of picture files, as four libraries write them: each gives the pixels that were written, or is refused."""

import io
import itertools
import struct

import cv2
import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from coe.errors import DamagedImage, ImageError, UnsupportedImage
from coe.pictures.decoding import decode

HEIGHT, WIDTH = 37, 53
RNG = np.random.default_rng(3)
SMOOTH = cv2.GaussianBlur(RNG.random((HEIGHT, WIDTH, 5), np.float32), (5, 5), 0)
SMOOTH = (SMOOTH - SMOOTH.min()) / (SMOOTH.max() - SMOOTH.min())


def samples(channels, dtype, least=0):
    """Smooth noise of all values of a type from `least` on; (H, W) for one channel."""
    top = 1.999 if dtype is bool else np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1
    array = (least + SMOOTH[..., :channels] * (top - least)).astype(dtype)
    return array[..., 0] if channels == 1 else array


def seen(array, white_is_zero=False, alpha=""):
    """What experts see: RGB, the high byte of 16 bits, alpha over white."""
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    if array.dtype == np.uint16:
        array = array >> 8
    array = array.reshape(HEIGHT, WIDTH, -1).astype(int)
    colours = 3 if array.shape[2] > 2 else 1
    rgb = np.repeat(array[..., :1], 3, axis=2) if colours == 1 else array[..., :3]
    rgb = 255 - rgb if white_is_zero else rgb
    if not alpha or array.shape[2] == colours:
        return rgb
    opaque = array[..., colours : colours + 1]
    if alpha == "assocalpha":
        return rgb + 255 - opaque
    return (rgb * opaque + 255 * (255 - opaque) + 127) // 255


def tiff(array, **options):
    data = io.BytesIO()
    tifffile.imwrite(data, array, metadata=None, **options)
    return data.getvalue()


def premultiplied(channels, dtype):
    array = samples(channels, dtype)
    array[..., :-1] = np.minimum(array[..., :-1], array[..., -1:])
    return array


LAYOUTS = {
    "bilevel": (samples(1, bool), "minisblack", ""),
    "bilevel, white is 0": (samples(1, bool), "miniswhite", ""),
    "grey 8": (samples(1, np.uint8), "minisblack", ""),
    "grey 8, white is 0": (samples(1, np.uint8), "miniswhite", ""),
    "grey 16": (samples(1, np.uint16), "minisblack", ""),
    "grey 16, white is 0": (samples(1, np.uint16), "miniswhite", ""),
    "grey and alpha": (samples(2, np.uint8), "minisblack", "unassalpha"),
    "grey and multiplied alpha": (premultiplied(2, np.uint8), "minisblack", "assocalpha"),
    "grey and another": (samples(2, np.uint8), "minisblack", "unspecified"),
    "rgb 8": (samples(3, np.uint8), "rgb", ""),
    "rgb 16": (samples(3, np.uint16), "rgb", ""),
    "rgba 8": (samples(4, np.uint8), "rgb", "unassalpha"),
    "rgba 8, multiplied": (premultiplied(4, np.uint8), "rgb", "assocalpha"),
    "rgb 8 and another": (samples(4, np.uint8), "rgb", "unspecified"),
    "rgba 16": (samples(4, np.uint16), "rgb", "unassalpha"),
    "rgb 16 and another": (samples(4, np.uint16), "rgb", "unspecified"),
}
WAYS = {
    "as it is": {},
    "lzw": {"compression": "lzw"},
    "deflate, in strips": {"compression": "zlib", "rowsperstrip": 5},
    "packbits": {"compression": "packbits"},
    "zstd, in tiles": {"compression": "zstd", "tile": (16, 32)},
    "lzma": {"compression": "lzma"},
    "predicted": {"compression": "lzw", "predictor": True},
    "in tiles": {"tile": (32, 16)},
    "in strips": {"rowsperstrip": 7},
    "large": {"bigtiff": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tiff_of_tifffile_gives_its_pixels(layout, way):
    array, photometric, alpha = LAYOUTS[layout]
    if way == "predicted" and array.dtype == bool:
        pytest.skip("bits are not predicted")
    for order in "<>":
        options = {"photometric": photometric, "extrasamples": (alpha,) if alpha else (), "byteorder": order}
        data = tiff(array, **options, **WAYS[way])
        assert (tifffile.imread(io.BytesIO(data)) == array).all()
        wanted = seen(array, photometric == "miniswhite", "" if alpha == "unspecified" else alpha)
        assert (decode(data) == wanted).all()


def planes(channels, dtype, photometric="rgb", **options):
    extra = ("unassalpha",) * (channels - (3 if photometric == "rgb" else 1))
    array = samples(channels, dtype).transpose(2, 0, 1)
    return tiff(array, photometric=photometric, planarconfig="separate", extrasamples=extra, **options)


def pillow(form, mode="RGB", **options):
    data = io.BytesIO()
    Image.fromarray(samples(3, np.uint8)).convert(mode).save(data, form, **options)
    return data.getvalue()


def opencv(ending, array, *options):
    return cv2.imencode(ending, array, options)[1].tobytes()


RAMP = np.arange(256, dtype=np.uint16)
GREY, RGB, WIDE_GREY, WIDE_RGB = (samples(*form) for form in ((1, "u1"), (3, "u1"), (1, "u2"), (3, "u2")))
RGBA, WIDE_RGBA = samples(4, "u1"), samples(4, "u2")
BGRA, WIDE_BGRA = RGBA[..., [2, 1, 0, 3]], WIDE_RGBA[..., [2, 1, 0, 3]]


def tagged(data, others):
    changed = bytearray(data)
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        for tag in file.pages[0].tags:
            struct.pack_into("<H", changed, tag.offset, others.get(tag.code, tag.code))
    return bytes(changed)


REFUSED = {
    "planar rgb of 5": lambda: planes(5, np.uint8, compression="zlib"),
    **{
        f"{name}{way}": lambda array=array, options=options: tiff(array, photometric="minisblack", **options)
        for name, array in {
            "int8": samples(1, np.int8),
            "int16": samples(1, np.int16),
            "int32": samples(1, np.int32),
            "uint32": samples(1, np.uint32),
            "uint64": samples(1, np.uint64),
            "float16": samples(1, np.float16),
            "float32": samples(1, np.float32),
            "float64": samples(1, np.float64),
        }.items()
        for way, options in {"": {}, ", lzw": {"compression": "lzw"}}.items()
    },
    "complex": lambda: tiff(samples(1, np.float32).astype(np.complex64), photometric="minisblack"),
    "float32, predicted": lambda: tiff(
        samples(1, np.float32), photometric="minisblack", compression="zlib", predictor=True
    ),
    "rgb float": lambda: tiff(samples(3, np.float32), photometric="rgb"),
    "rgb int8": lambda: tiff(samples(3, np.int8), photometric="rgb"),
    "jpeg in tiff": lambda: tiff(RGB, photometric="rgb", compression="jpeg"),
    "webp in tiff": lambda: tiff(RGB, photometric="rgb", compression="webp"),
    "png in tiff": lambda: tiff(RGB, photometric="rgb", compression="png"),
    "jpeg 2000 in tiff": lambda: tiff(RGB, photometric="rgb", compression="jpeg2000"),
    "jpeg xl in tiff": lambda: tiff(RGB, photometric="rgb", compression="jpegxl"),
    "lerc in tiff": lambda: tiff(RGB, photometric="rgb", compression="lerc"),
    "jpeg xr in tiff": lambda: tiff(RGB, photometric="rgb", compression="jpegxr"),
    "grey of five": lambda: tiff(samples(5, np.uint8), photometric="minisblack", planarconfig="contig"),
    "CIELab": lambda: tiff(RGB, photometric="cielab"),
    "YCbCr": lambda: tiff(RGB, photometric="ycbcr"),
    "Bayer": lambda: tiff(GREY, photometric="cfa"),
    "a preview of a raw file": lambda: tagged(
        tiff(RGB, photometric="rgb", compression="jpeg"), {277: 65000, 262: 65001}
    ),
    "a thumbnail first": lambda: tiff(GREY, photometric="minisblack", subfiletype=1),
    "a volume": lambda: tiff(np.stack([GREY] * 16), photometric="minisblack", volumetric=True, tile=(16, 16, 16)),
    "gif": lambda: pillow("GIF"),
    "webp": lambda: pillow("WEBP"),
    "ppm": lambda: pillow("PPM"),
    "tga": lambda: pillow("TGA"),
    "pcx": lambda: pillow("PCX"),
    "icon": lambda: pillow("ICO"),
    "dds": lambda: pillow("DDS"),
    "avif": lambda: imagecodecs.avif_encode(RGB),
    "an animation": lambda: pillow("PNG", save_all=True, append_images=[Image.new("RGB", (WIDTH, HEIGHT))]),
    "jpeg 2000": lambda: imagecodecs.jpeg2k_encode(RGB),
    "jpeg xl": lambda: imagecodecs.jpegxl_encode(RGB),
    "jpeg xr": lambda: imagecodecs.jpegxr_encode(RGB),
    "jpeg-ls": lambda: imagecodecs.jpegls_encode(GREY),
    "jpeg-ls 16": lambda: imagecodecs.jpegls_encode(WIDE_GREY),
    "lossless jpeg": lambda: imagecodecs.ljpeg_encode(WIDE_GREY),
    "jpeg of 12 bits": lambda: imagecodecs.jpeg8_encode(WIDE_GREY >> 4, bitspersample=12),
    "qoi": lambda: imagecodecs.qoi_encode(RGB),
    "opencv sun raster": lambda: opencv(".ras", RGB),
    "opencv radiance": lambda: opencv(".hdr", samples(3, np.float32)),
    "opencv pgm": lambda: opencv(".pgm", GREY),
    "opencv float tiff": lambda: opencv(".tiff", samples(3, np.float32)),
    "opencv jpeg 2000": lambda: opencv(".jp2", RGB),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_whole_file_of_another_form_is_called_unsupported(name, capfd):
    data = REFUSED[name]()
    capfd.readouterr()  # what libraries say while they write
    with pytest.raises(UnsupportedImage) as refused:
        decode(data)
    assert (refused.value.failure, "damaged" in str(refused.value)) == ("unsupported", False)
    assert capfd.readouterr() == ("", "")


def reversed_fax():
    """A TIFF as GraphicsMagick and scanners write it: the first pixel of a byte lies in its lowest bit."""
    return reversed_bits(bilevel("TIFF", compression="group4", tiffinfo={266: 1}))


def reversed_bits(whole):
    data = bytearray(whole)
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        page = file.pages[0]
        for offset, size in zip(page.dataoffsets, page.databytecounts, strict=True):
            data[offset : offset + size] = (int(f"{byte:08b}"[::-1], 2) for byte in data[offset : offset + size])
        order = page.tags[266].valueoffset if 266 in page.tags else page.tags[305].offset + 8
        if 266 not in page.tags:  # instead of the name of a program
            struct.pack_into("<HHI", data, page.tags[305].offset, 266, 3, 1)
    data[order : order + 2] = struct.pack("<H", 2)
    return bytes(data)


def twelve_bits():
    """A TIFF of 12 bits, with LZW: tifffile writes it without, and another writer's codes are put in."""
    packed = tiff(WIDE_GREY >> 4, photometric="minisblack", bitspersample=12)
    with tifffile.TiffFile(io.BytesIO(packed)) as file:
        page = file.pages[0]
        (offset,), (size,) = page.dataoffsets, page.databytecounts
        places = {tag: page.tags[tag].valueoffset for tag in (259, 279)}
    codes, data = imagecodecs.lzw_encode(packed[offset : offset + size]), bytearray(packed)
    data[offset:] = codes
    struct.pack_into("<H", data, places[259], 5)
    struct.pack_into("<I", data, places[279], len(codes))
    return bytes(data)


def inks(array):
    return np.asarray(Image.fromarray((array >> 8).astype(np.uint8), "CMYK").convert("RGB"))


EXACT = {
    "imagecodecs png grey": (lambda: imagecodecs.png_encode(GREY), seen(GREY)),
    "imagecodecs png grey 16": (lambda: imagecodecs.png_encode(WIDE_GREY), seen(WIDE_GREY)),
    "imagecodecs png rgb": (lambda: imagecodecs.png_encode(RGB), RGB),
    "imagecodecs png rgb 16": (lambda: imagecodecs.png_encode(WIDE_RGB), seen(WIDE_RGB)),
    **{
        f"imagecodecs png {'rgba' if channels == 4 else 'grey and alpha'} {dtype}": (
            lambda channels=channels, dtype=dtype: imagecodecs.png_encode(samples(channels, dtype)),
            seen(samples(channels, dtype), alpha="unassalpha"),
        )
        for channels in (2, 4)
        for dtype in ("u1", "u2")
    },
    "imagecodecs bmp": (lambda: imagecodecs.bmp_encode(RGB), RGB),
    "imagecodecs bmp grey": (lambda: imagecodecs.bmp_encode(GREY), seen(GREY)),
    "opencv png": (lambda: opencv(".png", RGB[..., ::-1]), RGB),
    "opencv png 16": (lambda: opencv(".png", WIDE_RGB[..., ::-1]), seen(WIDE_RGB)),
    "opencv png grey 16": (lambda: opencv(".png", WIDE_GREY), seen(WIDE_GREY)),
    "pillow bilevel png": (lambda: bilevel("PNG"), seen(GREY > 127)),
    "opencv bmp": (lambda: opencv(".bmp", RGB[..., ::-1]), RGB),
    "opencv bmp grey": (lambda: opencv(".bmp", GREY), seen(GREY)),
    "opencv tiff": (lambda: opencv(".tiff", RGB[..., ::-1]), RGB),
    "opencv tiff 16": (lambda: opencv(".tiff", WIDE_RGB[..., ::-1]), seen(WIDE_RGB)),
    "opencv tiff, deflate": (lambda: opencv(".tiff", RGB[..., ::-1], cv2.IMWRITE_TIFF_COMPRESSION, 8), RGB),
    "pillow png": (lambda: pillow("PNG"), RGB),
    "pillow bmp": (lambda: pillow("BMP"), RGB),
    "pillow tiff, fax": (lambda: bilevel("TIFF", compression="group4"), seen(GREY > 127)),
    "pillow tiff, fax group 3": (lambda: bilevel("TIFF", compression="group3"), seen(GREY > 127)),
    "tiff, fax whose bits are reversed": (reversed_fax, seen(GREY > 127)),
    "opencv tiff with alpha": (lambda: opencv(".tiff", BGRA), seen(RGBA, alpha="unassalpha")),
    "opencv tiff with alpha, 16": (lambda: opencv(".tiff", WIDE_BGRA), seen(WIDE_RGBA, alpha="unassalpha")),
    "tiff of inks, 16": (lambda: tiff(WIDE_RGBA, photometric="separated"), inks(WIDE_RGBA)),
    "tiff of little ink, 16": (lambda: tiff(WIDE_RGBA >> 4, photometric="separated"), inks(WIDE_RGBA >> 4)),
    "tiff of planes, grey and alpha": (
        lambda: planes(2, np.uint8, "minisblack", compression="lzw"),
        seen(samples(2, np.uint8), alpha="unassalpha"),
    ),
    "tiff, tiles in the tags of strips": (
        lambda: tagged(tiff(RGB, photometric="rgb", tile=(16, 16)), {324: 273, 325: 279}),
        RGB,
    ),
    "tiff whose bits are reversed": (lambda: reversed_bits(tiff(RGB, photometric="rgb", compression="lzw")), RGB),
    **{
        f"tiff of rgb of {bits} bits": (
            lambda bits=bits: tiff(WIDE_RGB >> (16 - bits), photometric="rgb", bitspersample=bits),
            seen(WIDE_RGB),
        )
        for bits in (10, 12, 14)
    },
    "tiff of 12 bits": (lambda: tiff(WIDE_GREY >> 4, photometric="minisblack", bitspersample=12), seen(WIDE_GREY)),
    "tiff of 12 bits, lzw": (twelve_bits, seen(WIDE_GREY)),
    "pillow tiff, lzw": (lambda: pillow("TIFF", compression="tiff_lzw"), RGB),
    "palette tiff": (
        lambda: tiff(GREY, photometric="palette", colormap=np.stack([RAMP * 257, RAMP[::-1] * 257, RAMP * 257])),
        np.stack([RAMP[GREY], RAMP[::-1][GREY], RAMP[GREY]], axis=2),
    ),
}


def bilevel(form, **options):
    data = io.BytesIO()
    Image.fromarray(GREY > 127).save(data, form, **options)
    return data.getvalue()


LOSSY = {
    "imagecodecs": lambda: imagecodecs.jpeg8_encode(RGB, level=90),
    "imagecodecs grey": lambda: imagecodecs.jpeg8_encode(GREY, level=90),
    "imagecodecs as rgb": lambda: imagecodecs.jpeg8_encode(RGB, level=90, outcolorspace="rgb"),
    "imagecodecs optimised": lambda: imagecodecs.jpeg8_encode(RGB, level=90, optimize=True),
    **{
        f"pillow {steps}": lambda steps=steps: pillow("JPEG", quality=90, subsampling=steps)
        for steps in ("4:4:4", "4:2:2", "4:2:0")
    },
    "pillow progressive": lambda: pillow("JPEG", quality=90, progressive=True),
    "pillow restarts": lambda: pillow("JPEG", quality=90, restart_marker_rows=1),
    "pillow mpo": lambda: pillow("MPO", quality=90),
    "opencv": lambda: opencv(".jpg", RGB[..., ::-1]),
    "opencv progressive": lambda: opencv(".jpg", RGB[..., ::-1], cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_jpeg_gives_the_pixels_that_another_decoder_gives(name):
    data = LOSSY[name]()
    assert np.abs(decode(data) - seen(imagecodecs.jpeg8_decode(data))).max() <= 2


def bmp(bits, rows, masks=(), colours=None, header=40):
    stride = (WIDTH * bits + 31) // 32 * 4
    body = b"".join(row.tobytes().ljust(stride, b"\0") for row in rows[::-1])
    palette = (
        b"" if colours is None else np.hstack([colours[:, ::-1], np.zeros((len(colours), 1))]).astype("u1").tobytes()
    )
    info = struct.pack(
        "<IiiHHIIiiII", header, WIDTH, HEIGHT, 1, bits, 3 if masks else 0, len(body), 0, 0, len(palette) // 4, 0
    )
    info += struct.pack(f"<{len(masks)}I", *masks)
    info = info.ljust(header, b"\0")
    at = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + info + palette + body


def packed(indices, bits):
    return np.packbits(
        np.unpackbits(indices.astype("u1")[..., None], axis=2)[..., 8 - bits :].reshape(HEIGHT, -1), axis=1
    )


def bmps():
    bgrx = np.dstack([RGB[..., ::-1], np.full((HEIGHT, WIDTH), 40, np.uint8)])
    alpha, ordinary = samples(1, np.uint8, least=20), (0xFF0000, 0xFF00, 0xFF)
    yield "24", bmp(24, RGB[..., ::-1].copy()), RGB
    yield "32, the fourth byte unused", bmp(32, bgrx), RGB
    yield "32, masks", bmp(32, bgrx, ordinary), RGB
    bgra = np.dstack([RGB[..., ::-1], alpha])
    yield "32, alpha", bmp(32, bgra, (*ordinary, 0xFF000000), header=108), seen(np.dstack([RGB, alpha]), alpha="yes")
    high = RGB.astype(np.uint16) >> 3
    five = high[..., 0] << 10 | high[..., 1] << 5 | high[..., 2]
    yield "16", bmp(16, five), high.astype(int) * 255 // 31
    green = RGB[..., 1].astype(np.uint16) >> 2
    six = high[..., 0] << 11 | green << 5 | high[..., 2]
    wanted = (np.dstack([high[..., 0], green, high[..., 2]]).astype(int) * 255) // (31, 63, 31)
    yield "16, masks", bmp(16, six, (0xF800, 0x7E0, 0x1F)), wanted
    for bits in (1, 4, 8):
        indices, colours = GREY >> (8 - bits), RNG.integers(0, 256, (1 << bits, 3))
        yield f"{bits}, palette", bmp(bits, packed(indices, bits), colours=colours), colours[indices]
        ramp = np.repeat(np.linspace(0, 255, 1 << bits).astype(int)[:, None], 3, axis=1)
        yield f"{bits}, grey", bmp(bits, packed(indices, bits), colours=ramp), ramp[indices]


EXACT |= {f"bmp {name}": (lambda data=data: data, wanted) for name, data, wanted in bmps()}
EXACT |= {
    f"tiff of {channels} planes of {dtype}, {name}": (
        lambda channels=channels, dtype=dtype, way=way: planes(channels, dtype, **way),
        seen(samples(channels, dtype), alpha="unassalpha"),
    )
    for name, way in WAYS.items()
    for channels in (3, 4)
    for dtype in ("u1", "u2")
}


@pytest.mark.parametrize("name", EXACT)
def test_a_lossless_file_gives_its_pixels(name):
    written, wanted = EXACT[name]
    assert (decode(written()) == wanted).all()


@pytest.mark.parametrize(
    "data",
    [
        bmp(8, GREY, colours=np.array([[0] * 3, [255] * 3])),
        bmp(4, packed(GREY >> 4, 4), colours=np.repeat(np.arange(16)[:, None], 3, axis=1)),
        bmp(32, np.dstack([RGB, GREY]), (0, 0, 0)),
        bmp(32, np.dstack([RGB, GREY]), (0x3FF00000, 0xFFC00, 0x3FF)),
        *(bmp(8, GREY, colours=np.zeros((256, 3)))[:30] + bytes([scheme]) + bytes(2000) for scheme in (1, 2, 4, 5, 6)),
    ],
)
def test_a_bmp_that_pillow_reads_wrongly_or_not_is_refused(data):
    with pytest.raises(UnsupportedImage):
        decode(data)


def test_a_picture_of_which_nothing_is_visible_is_refused():
    bgra = np.dstack([RGB, np.zeros_like(GREY)])
    wide = np.dstack([WIDE_RGB, np.full_like(WIDE_GREY, 200)])
    hidden = [
        pillow("PNG", "P", transparency=bytes(256)),
        bmp(32, bgra, (0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=108),
        imagecodecs.png_encode(wide),
        tiff(wide, photometric="rgb", extrasamples=("unassalpha",)),
    ]
    for mode, alpha, form in itertools.product(("LA", "RGBA"), (0, 5), ("PNG", "TIFF")):
        picture, data = Image.fromarray(RGB).convert(mode), io.BytesIO()
        picture.putalpha(alpha)
        picture.save(data, form)
        hidden += [data.getvalue(), np.asarray(picture.convert("RGBA"))]
    for data, more in [*((data, {}) for data in hidden), (wide, {"bits": 16})]:
        with pytest.raises(ImageError, match="transparent"):
            decode(data, **more)
    bgra[3, 4, 3] = 255
    assert decode(bgra).shape == (HEIGHT, WIDTH, 3)


def test_a_tiff_whose_strips_lack_rows_or_whose_tiles_are_far_larger_is_damaged():
    data = bytearray(tiff(GREY, photometric="minisblack", rowsperstrip=5))
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        counts = file.pages[0].tags[279]
    struct.pack_into("<I", data, counts.offset + 4, counts.count - 1)
    with pytest.raises(DamagedImage):
        decode(bytes(data))
    data = bytearray(tiff(RGB, photometric="rgb", tile=(64, 64), compression="zlib"))
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        width, height = (file.pages[0].tags[tag] for tag in (322, 323))
    for tag in (width, height):
        struct.pack_into("<HHII", data, tag.offset, tag.code, 4, 1, 1 << 20)
    with pytest.raises(DamagedImage):
        decode(bytes(data))


def test_damage_in_a_compressed_tiff_is_raised_and_written_nowhere(capfd):
    for compression in ("lzw", "zlib", "packbits", "zstd", "lzma"):
        whole = tiff(RGB, photometric="rgb", compression=compression)
        with tifffile.TiffFile(io.BytesIO(whole)) as file:
            at = file.pages[0].dataoffsets[0]
        with pytest.raises(DamagedImage):
            decode(whole[:at] + bytes(len(whole) - at - 100) + whole[-100:] if at > 100 else whole[:-50])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("way", ["as it is", "lzw"])
def test_pillows_own_limit_of_pixels_does_not_bite(way, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for data in (tiff(RGB, photometric="rgb", **WAYS[way]), pillow("PNG"), pillow("BMP"), pillow("JPEG")):
        assert decode(data).shape == (HEIGHT, WIDTH, 3)
    with pytest.raises(ImageError, match=r"0\.001"):
        decode(tiff(RGB, photometric="rgb", **WAYS[way]), limit_pixels=1000)


PROVED = ("zlib", "packbits", "lzw", "lzma")


@pytest.mark.parametrize("compression", PROVED)
@pytest.mark.parametrize("name", ["zeros", "noise", "a piece less", "a piece more"])
def test_a_compressed_tiff_whose_lengths_or_checksums_do_not_fit_is_refused(compression, name):
    """libtiff drops what it cannot decode, and the picture is black there, or shifted."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[0:240, 0:320]
    wave = 127 + 90 * np.sin(x / 17) + 30 * np.cos(y / 11)
    picture = (wave + rng.normal(0, 6, wave.shape)).clip(1, 254).astype(np.uint8)
    whole = tiff(picture, photometric="minisblack", compression=compression, rowsperstrip=16)
    changes = {
        "zeros": lambda data, at: data[:at] + bytes(256) + data[at + 256 :],
        "noise": lambda data, at: data[:at] + rng.bytes(256) + data[at + 256 :],
        "a piece less": lambda data, at: data[:at] + data[at + 256 :] + data[-256:],
        "a piece more": lambda data, at: data[:at] + rng.bytes(256) + data[at:-256],
    }
    with tifffile.TiffFile(io.BytesIO(whole)) as file:
        starts = file.pages[0].dataoffsets
    wrong = 0
    for at in rng.integers(starts[0], len(whole) - 600, 40):
        try:
            wrong += int((decode(changes[name](whole, int(at))) != picture[..., None]).any())
        except ImageError:
            continue
    assert wrong <= (2 if compression == "lzw" else 0)


@pytest.mark.parametrize("compression", ["", "packbits", "lzw", "zlib", "zstd", "lzma"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_strip_with_too_many_rows_or_too_few_is_damaged(compression, change):
    """tifffile cuts off what is too long, and fills in what is missing; a last strip may be filled up."""
    options = {"compression": compression} if compression else {}
    rows = {"photometric": "minisblack", "rowsperstrip": 16, **options}
    donor = tiff(GREY[: 16 + change], photometric="minisblack", **options)
    whole = bytearray(tiff(GREY, **rows))
    with tifffile.TiffFile(io.BytesIO(donor)) as file:
        (at,), (size,) = file.pages[0].dataoffsets, file.pages[0].databytecounts
    with tifffile.TiffFile(io.BytesIO(whole)) as file:
        offsets, sizes = (file.pages[0].tags[tag] for tag in (273, 279))
    assert (decode(bytes(whole)) == seen(GREY)).all()
    for tag, value in ((offsets, len(whole)), (sizes, size)):
        struct.pack_into(f"<{'QIH'[(8, 4, 2).index(tag.valuebytecount // tag.count)]}", whole, tag.valueoffset, value)
    strange = bytes(whole) + donor[at : at + size]
    if change > 0 and not compression:
        assert (decode(strange) == seen(GREY)).all()  # bytes behind raw pixels are none of theirs
    else:
        with pytest.raises(DamagedImage):
            decode(strange)


@pytest.mark.parametrize("wrong", [b"\1", bytes(4)])
def test_a_checksum_of_deflate_counts(wrong):
    data = tiff(GREY, photometric="minisblack", compression="zlib")
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        end = file.pages[0].dataoffsets[0] + file.pages[0].databytecounts[0]
    with pytest.raises(DamagedImage):
        decode(data[: end - len(wrong)] + wrong + data[end:])
