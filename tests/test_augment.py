"""Crops and greys against other implementations that are given the same parameters."""

import kornia
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepass import augment
from onepass.augment import Crop
from onepass.views import Views

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=6, channels=3, height=9, width=7, seed=0):
    return torch.rand(count, channels, height, width, generator=generator(seed))


def window(width, height, right, down, count=1):
    size, offset = torch.tensor([[width, height], [right, down]], dtype=torch.float32)
    return Crop(size.expand(count, 2), offset.expand(count, 2))


def cropped(batch, drawn):
    return augment.crop(batch, drawn, augment.pixel_centres(*batch.shape[2:]))


def crop_greyed(batch, source):
    return augment.crop_grey(batch, source, augment.pixel_centres(*batch.shape[2:]))


def reflected(position, size):
    """The image as a tile beside its mirror image; the mirror stands at the edge of the pixels."""
    position = (position + 0.5) % (2 * size)
    return min(position, 2 * size - position) - 0.5


def sampled_by_hand(image, *parameters):
    """Each output pixel's centre is looked up in the window, between its four neighbours."""
    width, height, right, down = map(float, parameters)
    channels, rows, columns = image.shape
    out = np.zeros_like(image)
    for i in range(rows):
        for j in range(columns):
            v = (height * ((2 * i + 1) / rows - 1) + down + 1) * rows / 2 - 0.5
            u = (width * ((2 * j + 1) / columns - 1) + right + 1) * columns / 2 - 0.5
            v = np.clip(reflected(v, rows), 0, rows - 1)
            u = np.clip(reflected(u, columns), 0, columns - 1)
            top, left = int(v), int(u)
            bottom, beside = min(top + 1, rows - 1), min(left + 1, columns - 1)
            a, b = v - top, u - left
            for c in range(channels):
                upper = (1 - b) * image[c, top, left] + b * image[c, top, beside]
                lower = (1 - b) * image[c, bottom, left] + b * image[c, bottom, beside]
                out[c, i, j] = (1 - a) * upper + a * lower
    return out


# ---- crops


@PROPERTY
@given(st.integers(1, 70), st.integers(1, 70))
def test_pixel_centres_are_those_of_torchs_own_grid(height, width):
    identity = torch.eye(2, 3).unsqueeze(0)
    expected = F.affine_grid(identity, [1, 1, height, width], align_corners=False)[0]
    found = augment.pixel_centres(height, width)
    assert found.shape == (height, width, 2)
    assert torch.allclose(found, expected, atol=1e-6)


@PROPERTY
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 9), st.sampled_from([1, 3]))
def test_a_crop_is_what_sampling_by_hand_gives(seed, height, width, channels):
    """For windows far past the image, too: the draws hardly reach there."""
    batch = images(2, channels, height, width, seed).double()
    sizes = torch.rand(2, 2, generator=generator(seed)).double() * 2 + 0.2
    shifts = torch.rand(2, 2, generator=generator(seed + 1)).double() * 2 - 1
    found = cropped(batch, Crop(sizes, shifts))
    for place in range(2):
        expected = sampled_by_hand(batch[place].numpy(), *sizes[place], *shifts[place])
        assert np.allclose(found[place].numpy(), expected, atol=1e-6)


def test_a_window_inside_the_image_is_what_kornia_warps():
    """Kornia moves pixel centres by a matrix from the image to the crop."""
    batch, size = images(40, 3, 16, 16), 16
    drawn = augment.draw_crops(40, generator(3))
    inside = (drawn.size + drawn.offset.abs() <= 1 - 1 / size).all(dim=1)
    assert int(inside.sum()) > 5
    batch, drawn = batch[inside], Crop(*(part[inside] for part in drawn))
    matrix = torch.zeros(len(batch), 2, 3)
    for axis, (scale, shift) in enumerate(zip(drawn.size.T, drawn.offset.T, strict=True)):
        offset = scale * (1 - size) / 2 + shift * size / 2 + (size - 1) / 2
        matrix[:, axis, axis] = 1 / scale
        matrix[:, axis, 2] = -offset / scale
    expected = kornia.geometry.transform.warp_affine(batch, matrix, (size, size))
    assert torch.allclose(cropped(batch, drawn), expected, atol=1e-4)


def test_the_whole_image_as_a_window_is_the_image():
    batch = images()
    assert torch.allclose(cropped(batch, window(1, 1, 0, 0, len(batch))), batch, atol=1e-6)


def test_a_quarter_as_a_window_is_that_quarter_enlarged():
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, :2, 2:] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    quarter = cropped(image, window(0.5, 0.5, 0.5, -0.5))[0, 0]
    assert torch.allclose(quarter[1:3, 1:3], torch.tensor([[1.75, 2.25], [2.75, 3.25]]))


def test_right_and_down_move_the_window_right_and_down():
    image = torch.zeros(1, 1, 8, 8)
    image[..., 6:, 6:] = 1
    moved = cropped(image, window(0.8, 0.8, 0.2, 0.2)).sum()
    assert moved > cropped(image, window(0.8, 0.8, -0.2, 0.2)).sum()
    assert moved > cropped(image, window(0.8, 0.8, 0.2, -0.2)).sum()


def test_a_constant_image_stays_constant_under_any_window():
    batch = torch.full((200, 1, 6, 6), 0.7)
    found = cropped(batch, augment.draw_crops(200, generator(1)))
    assert torch.allclose(found, batch, atol=1e-6)


def test_areas_aspects_and_positions_are_drawn_as_stated():
    drawn = augment.draw_crops(20_000, generator(5))
    assert drawn.size.shape == drawn.offset.shape == (20_000, 2)
    width, height = drawn.size.double().numpy().T
    right, down = drawn.offset.double().numpy().T
    area, aspect = width * height, np.log(width / height)
    right, down = right / (1 - width), down / (1 - height)
    bound = np.log(4 / 3)
    assert stats.kstest((area - 0.6) / 0.4, "uniform").pvalue > 1e-3
    assert stats.kstest((aspect + bound) / (2 * bound), "uniform").pvalue > 1e-3
    assert stats.kstest((right + 1) / 2, "uniform").pvalue > 1e-3
    assert stats.kstest((down + 1) / 2, "uniform").pvalue > 1e-3
    pairs = np.corrcoef([area, aspect, right, down])
    assert np.abs(pairs - np.eye(4)).max() < 0.04


def test_a_window_reaches_past_the_image_by_no_more_than_stated():
    drawn = augment.draw_crops(20_000, generator(6))
    past = (drawn.size + drawn.offset.abs() - 1) / 2  # in units of the image
    for furthest in past.amax(dim=0).tolist():
        assert 0.10 < furthest < 0.16


# ---- greys


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 10**6))
def test_a_grey_image_is_kornias_and_the_others_stay(chosen, seed):
    batch, mask = images(len(chosen), seed=seed), torch.tensor(chosen)
    found = augment.grey(batch, mask)
    expected = kornia.color.rgb_to_grayscale(batch).expand_as(batch)
    assert torch.allclose(found[mask], expected[mask], atol=1e-6)
    assert torch.equal(found[~mask], batch[~mask])


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_without_three_channels_are_never_greyed(channels):
    batch = images(channels=channels)
    assert torch.equal(augment.grey(batch, torch.ones(len(batch), dtype=torch.bool)), batch)


def test_one_image_in_five_is_greyed():
    chosen = augment.draw_greys(20_000, generator(2))
    assert stats.binomtest(int(chosen.sum()), 20_000, 0.2).pvalue > 1e-3


# ---- both


def test_every_sample_has_draws_of_its_own():
    same = images(1).expand(50, -1, -1, -1)
    found = crop_greyed(same, generator(4))
    assert len({tuple(one.flatten().tolist()) for one in found}) == 50


def test_an_image_is_augmented_without_regard_to_its_neighbours():
    batch = images(8)
    other = batch.clone()
    other[1:] = images(7, seed=9)
    first, second = (crop_greyed(x, generator(4))[0] for x in (batch, other))
    assert torch.equal(first, second)


def test_draws_come_from_the_given_generator_and_from_nowhere_else():
    batch, before, source = images(), torch.get_rng_state(), generator(1)
    first = crop_greyed(batch, source)
    second = crop_greyed(batch, source)
    torch.manual_seed(77)
    assert torch.equal(first, crop_greyed(batch, generator(1)))
    assert not torch.equal(first, second)
    torch.set_rng_state(before)
    crop_greyed(batch, generator(1))
    assert torch.equal(before, torch.get_rng_state())


def test_augmenting_leaves_the_images_as_they_were():
    batch = images()
    copy = batch.clone()
    crop_greyed(batch, generator())
    assert torch.equal(batch, copy)


# ---- views


def views(shape=(3, 9, 7), augment=True, mirror=True, seed=1):
    return Views(shape, mean=None, std=None, augment=augment, mirror=mirror, source=generator(seed))


def test_mirror_images_stand_behind_all_plain_ones():
    batch = images()
    assert torch.equal(views(augment=False)(batch), torch.cat([batch, batch.flip(3)]))
    assert torch.equal(views(augment=False, mirror=False)(batch), batch)


def test_plain_and_mirror_images_are_augmented_in_one_call():
    batch = images()
    both = torch.cat([batch, batch.flip(3)])
    assert torch.equal(views()(batch), crop_greyed(both, generator(1)))
    assert torch.equal(views(mirror=False)(batch), crop_greyed(batch, generator(1)))


def test_a_mirror_image_has_draws_of_its_own():
    symmetric = images(12) + images(12).flip(3)
    for plain, mirrored in zip(*views()(symmetric).chunk(2), strict=True):
        assert not torch.allclose(plain, mirrored)
        assert not torch.allclose(plain.flip(2), mirrored)


def test_vectors_are_neither_augmented_nor_mirrored():
    batch = torch.rand(4, 6, generator=generator())
    assert torch.equal(views(shape=(6,))(batch), batch)
