"""Tests of augmentations against other implementations with the same parameters."""

import kornia
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepass.functional import augment
from onepass.functional.augment import Crop
from onepass.functional.views import Views

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


CPU = torch.device("cpu")


def whole_pixels(height, width, area=augment.AREA):
    return augment.WholePixelCrops(height, width, area, CPU)


def crop_greyed(batch, source):
    shape = batch.shape[2:]
    return augment.crop_grey(batch, source, augment.pixel_centres(*shape), whole_pixels(*shape))


def reflected(position, size):
    """Returns a position inside the image, reflected at the outer edges of its pixels."""
    position = (position + 0.5) % (2 * size)
    return min(position, 2 * size - position) - 0.5


def sampled_by_hand(image, *parameters):
    """Crops by a loop: interpolates each output pixel between its four neighbours."""
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
    """Windows far past the image are included, which the draws hardly reach."""
    batch = images(2, channels, height, width, seed).double()
    sizes = torch.rand(2, 2, generator=generator(seed)).double() * 2 + 0.2
    shifts = torch.rand(2, 2, generator=generator(seed + 1)).double() * 2 - 1
    found = cropped(batch, Crop(sizes, shifts))
    for place in range(2):
        expected = sampled_by_hand(batch[place].numpy(), *sizes[place], *shifts[place])
        assert np.allclose(found[place].numpy(), expected, atol=1e-6)


def test_a_window_inside_the_image_is_what_kornia_warps():
    """kornia maps pixel centres by a matrix from the image to the crop."""
    batch, size = images(40, 3, 16, 16), 16
    drawn = augment.ReflectedCrops(augment.AREA)(40, generator(3))
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
    found = cropped(batch, augment.ReflectedCrops(augment.AREA)(200, generator(1)))
    assert torch.allclose(found, batch, atol=1e-6)


@pytest.mark.parametrize(("width", "height"), [(32, 32), (9, 7), (4, 20)])
@pytest.mark.parametrize("area", [augment.AREA, augment.CONTRASTIVE_AREA])
def test_windows_inside_are_drawn_as_if_drawn_again_until_they_fit(width, height, area):
    """Compares sides and offsets in pixels with the published script, which rounds candidates,
    takes the first that fits and draws integer offsets on both sides of the centre."""
    count, source = 40_000, np.random.default_rng(1)
    drawn = source.uniform(*area, 40 * count)
    aspect = np.exp(source.uniform(np.log(3 / 4), np.log(4 / 3), 40 * count))
    sides = np.stack([np.sqrt(drawn * aspect) * width, np.sqrt(drawn / aspect) * height]).round()
    sides = sides[:, ((sides >= 1) & (sides <= [[width], [height]])).all(axis=0)][:, :count]
    spare = np.array([[width], [height]]) - sides.astype(int)
    expected = np.concatenate([sides, source.integers(-spare, spare + 1)])

    found = whole_pixels(height, width, area)(count, generator(2))
    pixels = torch.tensor([width, height])
    found = torch.cat([found.size * pixels, found.offset * pixels], dim=1).double().numpy().T
    assert np.allclose(found, found.round(), atol=1e-4)
    found = found.round()
    assert bool((found[:2] + np.abs(found[2:]) <= [[width], [height]]).all())
    pairs = [(0, 1), (2, 3), (0, 2), (1, 3)]  # sides, offsets, and either side with its offset
    for first, second in pairs:
        rows = [
            np.unique(np.stack([t[first], t[second]]), axis=1, return_counts=True)
            for t in (expected, found)
        ]
        counts = {tuple(cell): [0, 0] for values, _ in rows for cell in values.T}
        for which, (values, often) in enumerate(rows):
            for cell, number in zip(values.T, often, strict=True):
                counts[tuple(cell)][which] = number
        table = np.array([pair for pair in counts.values() if sum(pair) >= 20]).T
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_windows_of_one_pixel_and_of_thin_images_are_the_whole():
    drawn = whole_pixels(1, 2)(10, generator())
    assert drawn.size.eq(1).all() and drawn.offset.eq(0).all()


def test_areas_aspects_and_positions_are_drawn_as_stated():
    drawn = augment.ReflectedCrops(augment.AREA)(20_000, generator(5))
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
    drawn = augment.ReflectedCrops(augment.AREA)(20_000, generator(6))
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


def test_every_sample_has_its_own_draws():
    same = images(1, height=64, width=64).expand(50, -1, -1, -1)  # so large that no two are alike
    found = crop_greyed(same, generator(4))
    assert len({tuple(image.flatten().tolist()) for image in found}) == 50


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


def views(shape=(3, 9, 7), augment="crop-grey", mirror=True, seed=1):
    return Views(shape, mean=None, std=None, augment=augment, mirror=mirror, rng=generator(seed))


def test_mirror_images_follow_all_plain_images():
    batch = images()
    assert torch.equal(views(augment="none")(batch), torch.cat([batch, batch.flip(3)]))
    assert torch.equal(views(augment="none", mirror=False)(batch), batch)


def test_plain_and_mirror_images_are_augmented_in_one_call():
    batch = images()
    both = torch.cat([batch, batch.flip(3)])
    assert torch.equal(views()(batch), crop_greyed(both, generator(1)))
    assert torch.equal(views(mirror=False)(batch), crop_greyed(batch, generator(1)))


def test_reflected_windows_may_reach_past_the_image():
    batch, centres = images(), augment.pixel_centres(9, 7)
    expected = augment.crop_grey(batch, generator(1), centres, augment.ReflectedCrops(augment.AREA))
    made = views(augment="crop-grey-reflected", mirror=False)
    assert torch.equal(made(batch), expected)


def test_smaller_windows_may_be_flipped():
    batch, source = images(200), generator(1)
    window = whole_pixels(9, 7, (0.3, 1.0))(200, source)
    flips, greys = torch.rand(200, generator=source) < 0.5, torch.rand(200, generator=source) < 0.25
    plain = cropped(batch, window)
    flipped = torch.where(flips.view(-1, 1, 1, 1), plain.flip(3), plain)
    luma = kornia.color.rgb_to_grayscale(flipped)
    expected = torch.where(greys.view(-1, 1, 1, 1), luma, flipped)
    made = views(augment="crop-grey-flip", mirror=False)(batch)
    assert torch.allclose(made, expected, atol=1e-5)


def test_a_mirror_image_has_its_own_draws():
    symmetric = images(12) + images(12).flip(3)
    for plain, mirrored in zip(*views()(symmetric).chunk(2), strict=True):
        assert not torch.allclose(plain, mirrored)
        assert not torch.allclose(plain.flip(2), mirrored)


def test_vectors_are_neither_augmented_nor_mirrored():
    batch = torch.rand(4, 6, generator=generator())
    assert torch.equal(views(shape=(6,))(batch), batch)


# ---- the contrastive augmentation


LEVELS = st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.5000001, 1.0]), min_size=3, max_size=3)


def per_image(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_brightness_is_kornias():
    batch, amount = images(5), per_image(-0.4, -0.1, 0, 0.2, 0.4)
    expected = kornia.enhance.adjust_brightness(batch, amount)
    assert torch.allclose(augment.brighten(batch, amount), expected, atol=1e-6)


def test_contrast_is_kornias():
    batch, factor = images(5), per_image(0.6, 0.9, 1, 1.2, 1.4)
    expected = kornia.enhance.adjust_contrast(batch, factor)
    assert torch.allclose(augment.scale_contrast(batch, factor), expected, atol=1e-6)


@pytest.mark.parametrize("factor", [0, 0.6, 1, 1.4, 5])
def test_saturation_is_kornias(factor):
    batch, factors = images(5), per_image(*[factor] * 5)
    expected = kornia.enhance.adjust_saturation(batch, factors)
    assert torch.allclose(augment.tint(batch, factors, torch.zeros(5)), expected, atol=1e-5)


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0, 0.03, 0.1, 1 / 3])
def test_hue_is_kornias(turn):
    batch, turns = images(5), per_image(*[turn] * 5)
    expected = kornia.enhance.adjust_hue(batch, 2 * np.pi * turns)
    assert torch.allclose(augment.tint(batch, torch.ones(5), turns), expected, atol=1e-5)


@PROPERTY
@given(LEVELS, st.floats(0, 2), st.floats(-0.5, 0.5))
def test_black_grey_white_and_equal_channels_are_tinted_as_kornia_does(pixel, factor, turn):
    batch = torch.tensor(pixel).view(1, 3, 1, 1)
    saturated = kornia.enhance.adjust_saturation(batch, per_image(factor))
    expected = kornia.enhance.adjust_hue(saturated, 2 * np.pi * per_image(turn))
    found = augment.tint(batch, per_image(factor), per_image(turn))
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_third_of_a_turn_moves_each_channel_to_the_next():
    batch = images(4)
    found = augment.tint(batch, torch.ones(4), torch.full((4,), 1 / 3))
    assert torch.allclose(found, batch.roll(1, dims=1), atol=1e-5)


def test_the_four_in_a_row_are_kornias_in_the_same_order():
    batch, drawn = images(30), augment.draw_jitter(30, generator(3))
    theirs = kornia.augmentation.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=1.0, order=(0, 1, 2, 3))
    factors = {
        "brightness_factor": 1 + drawn.brightness,
        "contrast_factor": drawn.contrast,
        "saturation_factor": drawn.saturation,
        "hue_factor": drawn.hue,
    }
    params = {**theirs.forward_parameters(batch.shape), **factors}
    assert torch.allclose(augment.jitter(batch, drawn), theirs(batch, params=params), atol=1e-5)


def test_a_flipped_window_is_kornias_mirror_image_of_it():
    batch, chosen = images(6), torch.tensor([True, False, True, True, False, False])
    drawn = whole_pixels(9, 7, augment.CONTRASTIVE_AREA)(6, generator(2))
    plain = cropped(batch, drawn)
    expected = torch.where(chosen.view(-1, 1, 1, 1), kornia.geometry.hflip(plain), plain)
    assert torch.allclose(cropped(batch, augment.flip(drawn, chosen)), expected, atol=1e-6)


def test_small_windows_are_what_kornia_crops():
    """kornia gets the corners of the window as the centres of its corner pixels."""
    size = 16
    batch, drawn = images(60, 3, size, size), augment.ReflectedCrops((0.2, 1.0))(60, generator(4))
    inside = (drawn.size + drawn.offset.abs() <= 1 - 1 / size).all(dim=1)
    assert int(inside.sum()) > 10
    batch, drawn = batch[inside], Crop(*(part[inside] for part in drawn))
    first, last = (
        (drawn.offset + sign * drawn.size * (1 - 1 / size) + 1) * size / 2 - 0.5 for sign in (-1, 1)
    )
    corners = [(first, first), (last, first), (last, last), (first, last)]
    boxes = torch.stack([torch.stack([x[:, 0], y[:, 1]], dim=1) for x, y in corners], dim=1)
    expected = kornia.geometry.transform.crop_and_resize(batch, boxes, (size, size))
    assert torch.allclose(cropped(batch, drawn), expected, atol=1e-4)


def test_neutral_jitter_leaves_an_image_as_it_is():
    batch, none, unit = images(3), torch.zeros(3), torch.ones(3)
    found = augment.jitter(batch, augment.Jitter(none, unit, unit, none))
    assert torch.allclose(found, batch, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_without_three_channels_have_neither_saturation_nor_hue(channels):
    batch = images(channels=channels)
    factors = torch.full((len(batch),), 0.3)
    assert torch.equal(augment.tint(batch, factors, factors), batch)
    found = contrastively(batch, generator(1))
    assert found.shape == batch.shape
    assert not torch.allclose(found, batch, atol=1e-2)


def test_flips_and_jitters_are_drawn_as_stated():
    flips = augment.draw_flips(20_000, generator(2))
    assert stats.binomtest(int(flips.sum()), 20_000, 0.5).pvalue > 1e-3
    drawn = augment.draw_jitter(20_000, generator(3))
    moved = drawn.brightness != 0
    assert stats.binomtest(int(moved.sum()), 20_000, 0.8).pvalue > 1e-3
    ends = [(-0.4, 0.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)]
    for values, neutral, (low, high) in zip(drawn, (0, 1, 1, 0), ends, strict=True):
        assert bool((values[~moved] == neutral).all())
        share = (values[moved].double().numpy() - low) / (high - low)
        assert stats.kstest(share, "uniform").pvalue > 1e-3
    pairs = np.corrcoef([values[moved].numpy() for values in drawn])
    assert np.abs(pairs - np.eye(4)).max() < 0.04


def contrastively(batch, source):
    shape = batch.shape[2:]
    draw_crops = whole_pixels(*shape, (0.2, 1.0))
    return augment.contrastive_view(batch, source, augment.pixel_centres(*shape), draw_crops)


def test_the_contrastive_view_is_crop_flip_jitter_grey():
    batch, source = images(40), generator(6)
    window = whole_pixels(9, 7, (0.2, 1.0))(40, source)
    flips = augment.draw_flips(40, source)
    jitter = augment.draw_jitter(40, source)
    greys = augment.draw_greys(40, source)
    flipped = torch.where(
        flips.view(-1, 1, 1, 1), cropped(batch, window).flip(3), cropped(batch, window)
    )
    lit = kornia.enhance.adjust_brightness(flipped, jitter.brightness)
    lit = kornia.enhance.adjust_contrast(lit, jitter.contrast)
    tinted = kornia.enhance.adjust_saturation(lit, jitter.saturation)
    tinted = kornia.enhance.adjust_hue(tinted, 2 * np.pi * jitter.hue)
    luma = kornia.color.rgb_to_grayscale(tinted)
    expected = torch.where(greys.view(-1, 1, 1, 1), luma, tinted)
    found = contrastively(batch, generator(6))
    assert torch.allclose(found, expected, atol=1e-5)
    assert float(found.min()) >= 0 and float(found.max()) <= 1 + 1e-6


def test_contrastive_views_are_drawn_for_each_image_from_the_given_generator_only():
    before = torch.get_rng_state()
    same = images(1).expand(50, -1, -1, -1)
    copy, source = same.clone(), generator(4)
    found = contrastively(same, source)
    assert len({tuple(image.flatten().tolist()) for image in found}) == 50
    assert torch.equal(found, contrastively(same, generator(4)))
    assert not torch.equal(found, contrastively(same, source))
    other = torch.cat([same[:1], images(49, seed=9)])
    assert torch.equal(contrastively(other, generator(4))[0], found[0])
    assert torch.equal(before, torch.get_rng_state()) and torch.equal(same, copy)


@pytest.mark.parametrize("mirror", [False, True])
def test_colours_change_as_pixels_and_are_normalised_afterwards(mirror):
    batch = (255 * images()).to(torch.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
    made = Views(
        (3, 9, 7),
        mean=mean,
        std=std,
        augment="contrastive",
        mirror=mirror,
        rng=generator(1),
    )
    pixels = batch.float() / 255
    if mirror:
        pixels = torch.cat([pixels, pixels.flip(3)])
    expected = contrastively(pixels, generator(1))
    centre, spread = (per_image(*values).view(3, 1, 1) for values in (mean, std))
    assert torch.allclose(made(batch), (expected - centre) / spread, atol=1e-4)
    assert torch.allclose(made.plain(batch), (pixels - centre) / spread, atol=1e-5)


def test_vectors_have_no_contrastive_view():
    batch = torch.rand(4, 6, generator=generator())
    made = Views((6,), mean=None, std=None, augment="contrastive", mirror=True, rng=generator())
    assert torch.equal(made(batch), batch)
