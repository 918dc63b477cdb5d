"""Crops and greys against other implementations that are given the same parameters."""

import kornia
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepass import augment
from onepass.augment import Crop

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=6, channels=3, height=9, width=7, seed=0):
    return torch.rand(count, channels, height, width, generator=generator(seed))


def window(width, height, right, down, count=1):
    values = (torch.full((count,), float(value)) for value in (width, height, right, down))
    return Crop(*values)


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
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 9), st.sampled_from([1, 3]))
def test_a_crop_is_what_sampling_by_hand_gives(seed, height, width, channels):
    """For windows far past the image, too: the draws hardly reach there."""
    batch = images(2, channels, height, width, seed).double()
    sizes = torch.rand(2, 2, generator=generator(seed)).double() * 2 + 0.2
    shifts = torch.rand(2, 2, generator=generator(seed + 1)).double() * 2 - 1
    found = augment.crop(batch, Crop(*sizes, *shifts))
    for place in range(2):
        expected = sampled_by_hand(batch[place].numpy(), *sizes[:, place], *shifts[:, place])
        assert np.allclose(found[place].numpy(), expected, atol=1e-6)


def test_a_window_inside_the_image_is_what_kornia_warps():
    """Kornia moves pixel centres by a matrix from the image to the crop."""
    batch, size = images(40, 3, 16, 16), 16
    drawn = augment.draw_crops(40, generator(3))
    inside = (drawn.width + drawn.right.abs() <= 1 - 1 / size) & (
        drawn.height + drawn.down.abs() <= 1 - 1 / size
    )
    assert int(inside.sum()) > 5
    batch, drawn = batch[inside], Crop(*(part[inside] for part in drawn))
    matrix = torch.zeros(len(batch), 2, 3)
    for axis, (scale, shift) in enumerate([(drawn.width, drawn.right), (drawn.height, drawn.down)]):
        offset = scale * (1 - size) / 2 + shift * size / 2 + (size - 1) / 2
        matrix[:, axis, axis] = 1 / scale
        matrix[:, axis, 2] = -offset / scale
    expected = kornia.geometry.transform.warp_affine(batch, matrix, (size, size))
    assert torch.allclose(augment.crop(batch, drawn), expected, atol=1e-4)


def test_the_whole_image_as_a_window_is_the_image():
    batch = images()
    assert torch.allclose(augment.crop(batch, window(1, 1, 0, 0, len(batch))), batch, atol=1e-6)


def test_a_quarter_as_a_window_is_that_quarter_enlarged():
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, :2, 2:] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    quarter = augment.crop(image, window(0.5, 0.5, 0.5, -0.5))[0, 0]
    assert torch.allclose(quarter[1:3, 1:3], torch.tensor([[1.75, 2.25], [2.75, 3.25]]))


def test_right_and_down_move_the_window_right_and_down():
    image = torch.zeros(1, 1, 8, 8)
    image[..., 6:, 6:] = 1
    moved = augment.crop(image, window(0.8, 0.8, 0.2, 0.2)).sum()
    assert moved > augment.crop(image, window(0.8, 0.8, -0.2, 0.2)).sum()
    assert moved > augment.crop(image, window(0.8, 0.8, 0.2, -0.2)).sum()


def test_a_constant_image_stays_constant_under_any_window():
    batch = torch.full((200, 1, 6, 6), 0.7)
    found = augment.crop(batch, augment.draw_crops(200, generator(1)))
    assert torch.allclose(found, batch, atol=1e-6)


def test_areas_aspects_and_positions_are_drawn_as_stated():
    drawn = augment.draw_crops(20_000, generator(5))
    area = (drawn.width * drawn.height).numpy()
    aspect = np.log((drawn.width / drawn.height).numpy())
    right = (drawn.right / (1 - drawn.width)).numpy()
    down = (drawn.down / (1 - drawn.height)).numpy()
    bound = np.log(4 / 3)
    assert stats.kstest((area - 0.6) / 0.4, "uniform").pvalue > 1e-3
    assert stats.kstest((aspect + bound) / (2 * bound), "uniform").pvalue > 1e-3
    assert stats.kstest((right + 1) / 2, "uniform").pvalue > 1e-3
    assert stats.kstest((down + 1) / 2, "uniform").pvalue > 1e-3
    pairs = np.corrcoef([area, aspect, right, down])
    assert np.abs(pairs - np.eye(4)).max() < 0.04


def test_a_window_reaches_past_the_image_by_no_more_than_stated():
    drawn = augment.draw_crops(20_000, generator(6))
    for size, shift in ((drawn.width, drawn.right), (drawn.height, drawn.down)):
        past = (size + shift.abs() - 1) / 2  # in units of the image
        assert 0.10 < float(past.max()) < 0.16


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
    found = augment.crop_grey(same, generator(4))
    assert len({tuple(one.flatten().tolist()) for one in found}) == 50


def test_an_image_is_augmented_without_regard_to_its_neighbours():
    batch = images(8)
    other = batch.clone()
    other[1:] = images(7, seed=9)
    first, second = (augment.crop_grey(x, generator(4))[0] for x in (batch, other))
    assert torch.equal(first, second)


def test_draws_come_from_the_given_generator_and_from_nowhere_else():
    batch, before, source = images(), torch.get_rng_state(), generator(1)
    first = augment.crop_grey(batch, source)
    second = augment.crop_grey(batch, source)
    torch.manual_seed(77)
    assert torch.equal(first, augment.crop_grey(batch, generator(1)))
    assert not torch.equal(first, second)
    torch.set_rng_state(before)
    augment.crop_grey(batch, generator(1))
    assert torch.equal(before, torch.get_rng_state())


def test_augmenting_leaves_the_images_as_they_were():
    batch = images()
    copy = batch.clone()
    augment.crop_grey(batch, generator())
    assert torch.equal(batch, copy)
