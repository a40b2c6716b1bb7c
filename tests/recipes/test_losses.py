from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.nets.discriminator import Discriminator, DiscriminatorConfig, DiscriminatorOutput
from fusionray.recipes.losses import (
    ArcFaceHead,
    adversarial_discriminator_loss,
    adversarial_generator_loss,
    feature_matching_loss,
    gradient_penalty,
    identity_loss,
    mask_loss,
    masked_l1,
    structure_loss,
)


def build_output(*logits: torch.Tensor) -> DiscriminatorOutput:
    return DiscriminatorOutput(list(logits), [[value] for value in logits])


def test_arc_margin_adds_the_angle_to_the_true_class_alone() -> None:
    torch.manual_seed(0)
    head = ArcFaceHead(5, 8, scale=30.0, margin=0.5)
    embedding, label = F.normalize(torch.randn(6, 8)), torch.tensor([0, 1, 2, 3, 4, 0])
    with torch.no_grad():
        logits = head(embedding, label)
        centres = F.normalize(head.centres)
    for i in range(6):
        for k in range(5):
            theta = math.acos(float((embedding[i] * centres[k]).sum()))
            wanted = 30.0 * math.cos(theta + (0.5 if k == label[i] else 0.0))
            assert float(logits[i, k]) == pytest.approx(wanted, abs=1e-3)


def test_arc_margin_stays_monotonic_where_the_angle_would_fold_back() -> None:
    head = ArcFaceHead(1, 2, scale=1.0, margin=0.5)
    with torch.no_grad():
        head.centres.copy_(torch.tensor([[1.0, 0.0]]))
    angles = torch.linspace(0.01, math.pi - 0.01, 200)
    embedding = torch.stack([angles.cos(), angles.sin()], dim=1)
    logits = head(embedding, torch.zeros(200, dtype=torch.int64))[:, 0]
    assert (logits.diff() < 0).all()


def test_arc_margin_has_finite_gradients_at_the_poles() -> None:
    head = ArcFaceHead(1, 2, scale=64.0, margin=0.5)
    with torch.no_grad():
        head.centres.copy_(torch.tensor([[1.0, 0.0]]))
    embedding = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    head(embedding, torch.zeros(2, dtype=torch.int64)).sum().backward()
    assert embedding.grad is not None
    assert embedding.grad.isfinite().all()


def test_arc_margin_keeps_its_precision_under_autocast() -> None:
    torch.manual_seed(0)
    head = ArcFaceHead(50, 512, scale=64.0, margin=0.5)
    embedding, label = F.normalize(torch.randn(4, 512)), torch.arange(4)
    exact = head(embedding, label)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = head(embedding, label)
    torch.testing.assert_close(cast, exact)


def test_the_penalty_of_one_linear_logit_is_its_squared_weight() -> None:
    # D(x) = <w, x>: its gradient is w, whatever the picture.
    torch.manual_seed(0)
    weight = torch.randn(3, 4, 4)
    image = torch.randn(5, 3, 4, 4, requires_grad=True)
    score = (image * weight).sum(dim=(1, 2, 3))
    penalty = gradient_penalty(build_output(score[:, None, None, None]), image)
    assert float(penalty.detach()) == pytest.approx(float(weight.square().sum()), rel=1e-5)


def test_the_penalty_of_separate_patches_is_the_mean_of_their_squared_weights() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 4, 4)
    image = torch.randn(5, 3, 4, 4, requires_grad=True)
    logits = F.avg_pool2d(image * weight, 2).sum(dim=1, keepdim=True) * 4  # four patches of 2 x 2 pixels
    penalty = gradient_penalty(build_output(logits), image)
    assert float(penalty.detach()) == pytest.approx(float(weight.square().sum()) / 4, rel=1e-5)


@pytest.mark.parametrize(("size", "layers", "scales"), [(64, 3, 2), (128, 4, 2), (256, 4, 3)])
def test_the_penalty_pulls_as_that_of_one_logit(size: int, layers: int, scales: int) -> None:
    # The shapes of tiny-64, fast-128 and base-256, at small widths. One logit at a time is the reference: gamma is
    # published for a discriminator of one logit.
    torch.manual_seed(0)
    network = Discriminator(DiscriminatorConfig(channels=(16,) * layers, scales=scales))
    image = F.interpolate(torch.randn(1, 3, size // 8, size // 8), size=size, mode="bilinear").requires_grad_(True)
    output = network(image)
    means = []
    for logits in output.logits:
        some = logits.flatten()[:: max(1, logits.numel() // 8)]  # a sample of the patches of a scale
        gradients = [torch.autograd.grad(logit, image, create_graph=True)[0] for logit in some.unbind()]
        means.append(torch.stack([gradient.square().sum() for gradient in gradients]).mean())
    weights = [parameter for parameter in network.parameters() if parameter.ndim > 1]

    def pull(penalty: Tensor) -> float:
        gradients = torch.autograd.grad(penalty, weights, retain_graph=True, allow_unused=True)
        return float(nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None]))

    expected, found = torch.stack(means).mean(), gradient_penalty(output, image)
    assert 0.5 < float((found / expected).detach()) < 2
    # The weights that overlapping patches share are pulled by more than one of them; the mean logit alone pulled with
    # a tenth.
    assert 0.5 < pull(found) / pull(expected) < 4


def test_the_penalty_can_be_learned_from() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    image = torch.randn(2, 3, 4, 4, requires_grad=True)
    logits = weight * image.mean(dim=(1, 2, 3))[:, None, None, None]
    penalty = gradient_penalty(build_output(logits), image)
    # d/dx (w mean x) = w / 48 in 48 places
    assert float(penalty.detach()) == pytest.approx(3.0**2 / 48, rel=1e-5)
    penalty.backward()
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(2 * 3.0 / 48, rel=1e-5)


def test_the_loss_of_a_guessing_discriminator_is_ln_4() -> None:
    nothing = build_output(torch.zeros(2, 1, 3, 3), torch.zeros(2, 1, 1, 1))
    assert float(adversarial_discriminator_loss(nothing, nothing)) == pytest.approx(math.log(4))
    assert float(adversarial_generator_loss(nothing)) == pytest.approx(math.log(2))


def test_generator_and_discriminator_losses_prefer_opposite_logits() -> None:
    high, low = build_output(torch.full((1, 1, 2, 2), 5.0)), build_output(torch.full((1, 1, 2, 2), -5.0))
    assert adversarial_discriminator_loss(high, low) < 0.1 < adversarial_discriminator_loss(low, high)
    assert adversarial_generator_loss(high) < 0.1 < adversarial_generator_loss(low)


def test_masked_l1_counts_the_chosen_rows_only_against_the_whole_batch() -> None:
    output, wanted = torch.zeros(4, 3, 2, 2), torch.arange(1.0, 5.0)[:, None, None, None].expand(4, 3, 2, 2)
    assert float(masked_l1(output, wanted, torch.tensor([True, False, False, True]))) == pytest.approx((1 + 4) / 4)
    assert float(masked_l1(output, wanted, torch.zeros(4, dtype=torch.bool))) == 0


def test_masked_l1_over_micro_batches_averages_to_that_of_the_whole() -> None:
    torch.manual_seed(0)
    output, wanted = torch.randn(8, 3, 2, 2), torch.randn(8, 3, 2, 2)
    chosen = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0], dtype=torch.bool)
    whole = masked_l1(output, wanted, chosen)
    halves = [masked_l1(output[part], wanted[part], chosen[part]) for part in (slice(0, 4), slice(4, 8))]
    torch.testing.assert_close(torch.stack(halves).mean(), whole)


def structural_similarity_slowly(first: Tensor, second: Tensor) -> Tensor:
    """Wang et al. 2004, equation 13, of grey planes in [0,1]: window by window, cut off at the border."""
    height, width = first.shape
    rows = []
    for y in range(height):
        for x in range(width):
            part = (slice(max(0, y - 3), y + 4), slice(max(0, x - 3), x + 4))
            a, b = first[part].double(), second[part].double()
            covariance = ((a - a.mean()) * (b - b.mean())).mean()
            above = (2 * a.mean() * b.mean() + 1e-4) * (2 * covariance + 9e-4)
            below = (a.mean() ** 2 + b.mean() ** 2 + 1e-4) * (a.var(correction=0) + b.var(correction=0) + 9e-4)
            rows.append(above / below)
    return torch.stack(rows).reshape(height, width)


def test_the_structure_loss_is_one_minus_the_similarity_within_the_region() -> None:
    torch.manual_seed(0)
    output, wanted = torch.rand(2, 3, 12, 10) * 2 - 1, torch.rand(2, 3, 12, 10) * 2 - 1
    region = torch.rand(2, 1, 12, 10)
    planes = [
        structural_similarity_slowly((output[0, channel] + 1) / 2, (wanted[0, channel] + 1) / 2) for channel in range(3)
    ]
    dissimilarity = 1 - torch.stack(planes).mean(dim=0)
    # Looked at from every second place on.
    dissimilarity, seen = dissimilarity[::2, ::2], region[0, 0, ::2, ::2]
    first_row = (dissimilarity * seen).sum() / seen.sum()
    loss = structure_loss(output, wanted, region, torch.tensor([True, False]))
    torch.testing.assert_close(loss, first_row.float() / 2, rtol=1e-4, atol=1e-5)
    assert structure_loss(wanted, wanted, region, torch.tensor([True, True])).abs() < 1e-6
    assert structure_loss(output, wanted, torch.zeros_like(region), torch.tensor([True, True])) == 0


def test_the_mask_loss_is_the_cross_entropy_and_pulls_back_a_mask_that_is_sure_of_the_wrong_thing() -> None:
    torch.manual_seed(0)
    mask, region = torch.rand(2, 1, 8, 8), torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(mask_loss(mask, region), F.binary_cross_entropy(mask, region))
    assert mask_loss(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).isfinite()
    logit = torch.tensor([[[[-6.0]]]], requires_grad=True)
    mask_loss(logit.sigmoid(), torch.ones(1, 1, 1, 1)).backward()
    assert logit.grad is not None
    assert logit.grad < -0.9  # that of an L1 would be -0.002


def test_the_structure_loss_punishes_a_blur_that_l1_forgives() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(1, 3, 16, 16) * 2 - 1
    flat, shifted = wanted.mean(dim=(2, 3), keepdim=True).expand_as(wanted), wanted + 0.5
    everywhere, chosen = torch.ones(1, 1, 16, 16), torch.tensor([True])
    assert masked_l1(flat, wanted, chosen) < masked_l1(shifted, wanted, chosen) * 1.1
    assert structure_loss(flat, wanted, everywhere, chosen) > 3 * structure_loss(shifted, wanted, everywhere, chosen)


def test_the_identity_loss_is_0_for_one_person_and_2_for_the_opposite() -> None:
    embedding = F.normalize(torch.randn(3, 8))
    assert float(identity_loss(embedding, embedding)) == pytest.approx(0, abs=1e-6)
    assert float(identity_loss(embedding, -embedding)) == pytest.approx(2)


def test_feature_matching_is_0_for_equal_pictures_and_looks_at_deep_layers_only() -> None:
    maps = [torch.randn(2, 4, 8, 8), torch.randn(2, 8, 4, 4)]
    same = DiscriminatorOutput([], [[value.clone() for value in maps]])
    assert float(feature_matching_loss(same, DiscriminatorOutput([], [maps]), 0)) == 0
    shallow = DiscriminatorOutput([], [[maps[0] + 1, maps[1]]])
    assert float(feature_matching_loss(shallow, DiscriminatorOutput([], [maps]), 1)) == 0
    assert float(feature_matching_loss(shallow, DiscriminatorOutput([], [maps]), 0)) == pytest.approx(0.5, rel=1e-5)


def test_feature_matching_moves_the_fake_towards_the_real_not_the_other_way() -> None:
    fake, real = torch.randn(1, 2, 2, 2, requires_grad=True), torch.randn(1, 2, 2, 2, requires_grad=True)
    feature_matching_loss(DiscriminatorOutput([], [[fake]]), DiscriminatorOutput([], [[real]]), 0).backward()
    assert fake.grad is not None
    assert real.grad is None
