import io

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_encoders import photo

from onepass.base.errors import DataError, InputError
from onepass.encoders.images import as_images, prepare, squares


def pixels(image, size=16):
    return squares(image, "it", [size])[size]


def saved(image, path, **options):
    image.save(path, **options)
    return str(path)


def test_a_path_a_picture_and_an_array_are_one_image(tmp_path):
    picture = photo(width=16, height=16)
    array = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    expected = np.array(picture)
    for image in (saved(picture, tmp_path / "a.png"), picture, array):
        assert np.array_equal(pixels(image), expected)


def test_any_shape_is_squeezed_into_a_square_by_the_bicubic_filter():
    picture = photo(width=50, height=30)
    expected = np.asarray(picture.resize((16, 16), Image.Resampling.BICUBIC))
    assert np.array_equal(pixels(picture), expected)
    assert squares(picture, "it", [8, 32])[32].shape == (32, 32, 3)


def test_a_photo_is_turned_upright(tmp_path):
    picture = photo(width=16, height=16)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 270 degrees
    path = saved(picture, tmp_path / "turned.png", exif=exif)
    assert np.array_equal(pixels(path), np.asarray(picture.transpose(Image.Transpose.ROTATE_270)))


def test_grey_cmyk_and_sixteen_bits_become_colours_of_eight_bits(tmp_path):
    grey = photo(width=16, height=16).convert("L")
    expected = np.asarray(grey.convert("RGB"))
    assert np.array_equal(pixels(grey), expected)
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert np.array_equal(pixels(saved(deep, tmp_path / "deep.png")), expected)
    cmyk = photo(width=16, height=16).convert("CMYK")
    found = pixels(saved(cmyk, tmp_path / "cmyk.tiff"))
    assert np.array_equal(found, np.asarray(cmyk.convert("RGB")))
    one = torch.from_numpy(np.asarray(grey).copy())[None]
    assert np.array_equal(pixels(one), expected)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_places_are_white(mode, tmp_path):
    picture = photo(width=16, height=16).convert("RGBA")
    picture.putalpha(Image.fromarray(np.repeat([[0], [255]], 8, 0).repeat(16, 1).astype("uint8")))
    if mode == "P":
        palette = Image.new("P", (16, 16), 3)
        palette.putpalette([10, 20, 30] * 256)
        palette.paste(4, (0, 0, 16, 8))
        path = saved(palette, tmp_path / "clear.png", transparency=4)
    else:
        path = saved(picture.convert(mode), tmp_path / "clear.png")
    found = pixels(path)
    assert (found[:8] == 255).all() and (found[8:] < 255).any()


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    path = saved(frames[0], tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert (pixels(path) == (255, 0, 0)).all()


def test_the_users_picture_stays_as_it_was():
    picture = photo()
    picture.getexif()[0x0112] = 6
    before = picture.tobytes(), picture.size
    pixels(picture)
    assert (picture.tobytes(), picture.size) == before


@pytest.fixture
def truncated(tmp_path):
    whole = io.BytesIO()
    photo(width=200, height=200).save(whole, "JPEG")
    path = tmp_path / "half.jpg"
    path.write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    return path


def test_a_damaged_image_is_named(truncated, tmp_path):
    with pytest.raises(DataError, match=r"half\.jpg is damaged"):
        pixels(str(truncated))
    with Image.open(truncated) as opened, pytest.raises(DataError, match="it is damaged"):
        pixels(opened)
    for name in ("missing.jpg", "."):
        with pytest.raises(DataError, match=r"missing\.jpg|a folder"):
            pixels(str(tmp_path / name))


def test_damaged_images_are_left_out_and_reported_in_order(truncated, tmp_path):
    files = [saved(photo(seed), tmp_path / f"{seed}.png") for seed in range(9)]
    batch = [str(truncated), *files[:4], str(truncated), *files[4:], str(truncated)]
    damaged = []
    chunks = list(prepare(batch, [16], 4, damaged))
    assert [index for index, _ in damaged] == [0, 5, 11]
    assert [chunk.indices for chunk in chunks] == [[1, 2, 3, 4], [6, 7, 8, 9], [10]]
    found = np.concatenate([chunk.pixels[16] for chunk in chunks])
    assert np.array_equal(found, np.stack([pixels(file) for file in files]))
    with pytest.raises(DataError, match=r"half\.jpg"):
        list(prepare(batch, [16], 4, None))


def test_a_batch_of_nothing_but_damage_is_empty(truncated):
    damaged = []
    assert not list(prepare([str(truncated)] * 3, [16], 2, damaged)) and len(damaged) == 3


@pytest.mark.parametrize(
    "batch",
    [
        "photo.jpg",
        photo(),
        [],
        [3],
        [None],
        np.zeros((2, 3, 8, 8), np.float32),
        np.zeros((2, 5, 8, 8), np.uint8),
        [np.zeros((8, 8, 3), np.uint8)],
        [np.zeros((3, 8, 8), np.float32)],
    ],
)
def test_anything_else_is_refused_with_what_was_expected(batch):
    with pytest.raises(InputError, match="expected a list of paths, of Pillow images"):
        as_images(batch)
