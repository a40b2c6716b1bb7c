"""Face-fusion recipe: a GAN of generator and discriminator, supervised by a frozen identity encoder.

Training is *paired* on synthetic faces, where the rendered true fusion is the reference, and *unpaired* on
photographs, where a reference exists only for pairs of one person: the target itself.

Shape suffixes: N batch, C channels, H rows, W columns, E embedding length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fusionray.data.synthetic import render_true_fusion
from fusionray.nets.discriminator import Discriminator
from fusionray.nets.fusion import FusionNetwork
from fusionray.nets.generator import GeneratorOutput
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.pixels import elliptic_region, to_float, to_uint8
from fusionray.recipes.adaptive_augmentation import AdaptiveAugmentation
from fusionray.recipes.affine import jitter_views
from fusionray.recipes.arcface_crop import ArcFaceCrop
from fusionray.recipes.augmentation import Augmentation, degrade_resolution
from fusionray.recipes.face_fusion.identity_perturbation import IdentityPerturbation, IdentityPerturbationConfig
from fusionray.recipes.face_fusion.settings import FaceFusionConfig
from fusionray.recipes.losses import (
    adversarial_discriminator_loss,
    adversarial_generator_loss,
    feature_matching_loss,
    gradient_penalty,
    identity_loss,
    mask_loss,
    masked_l1,
    structure_loss,
)
from fusionray.recipes.recipe import Losses, Phase, PhaseInput
from fusionray.types import Batch, PairBatch


@dataclass(frozen=True)
class FusionInput(Batch):
    """Prepared pairs, all pictures in [-1,1].

    `source_face` [N,3,112,112]; `target`, `reference` [N,3,S,S]; `face_region` [N,1,S,S] in [0,1]; `same_identity`
    bool [N]. `paired`: `reference` is the true fusion; otherwise it is the target.
    """

    source_face: Tensor
    target: Tensor
    reference: Tensor
    face_region: Tensor
    same_identity: Tensor
    paired: bool


class FaceFusionRecipe:
    """Train a generator that fuses the identity of a source into a target."""

    ema_names = frozenset({"generator"})

    def __init__(
        self,
        config: FaceFusionConfig,
        *,
        identity_encoder: IdentityEncoder,
        face_view_23: Tensor,
        all_skin: bool = True,
    ) -> None:
        self.config = config
        # Whether the generator learns to change all visible skin, or the middle of the face alone.
        self.all_skin = all_skin
        self.networks: Mapping[str, nn.Module] = {
            "generator": FusionNetwork(config.generator, face_view_23),
            "discriminator": Discriminator(config.discriminator),
        }
        upright = config.augmentation.model_copy(update={"rotation_degrees": 0.0})
        self.frozen: Mapping[str, nn.Module] = {
            "identity": identity_encoder,
            "face_crop": ArcFaceCrop(face_view_23),
            "augmentation": Augmentation(config.augmentation),
            "source_augmentation": Augmentation(upright),
            **(
                {"identity_perturbation": IdentityPerturbation(config.identity_perturbation)}
                if config.identity_perturbation
                else {}
            ),
        }
        # No module when it is off: a probability of 0 would still cost a warp.
        chosen = config.adaptive_augmentation
        self.discriminator_augmentation = AdaptiveAugmentation(chosen) if chosen.target_real_sign else None
        self.adaptive: Mapping[str, nn.Module] = (
            {} if self.discriminator_augmentation is None else {"augmentation": self.discriminator_augmentation}
        )
        discriminator_optimizer = config.discriminator_optimizer
        phases: list[Phase[FusionInput]] = [Phase("generator", "generator", self.generator_loss)]
        if config.weights.adversarial or config.weights.feature_matching:
            phases.append(Phase("discriminator", "discriminator", self.discriminator_loss))
        if config.weights.adversarial and config.weights.gradient_penalty:
            interval = config.gradient_penalty_interval
            phases.append(
                Phase("gradient_penalty", "discriminator", self.gradient_penalty_loss, interval, second_order=True)
            )
            discriminator_optimizer = discriminator_optimizer.adjust_for_lazy_penalty(interval)
        self.phases = tuple(phases)
        self.optimizers = {"generator": config.generator_optimizer, "discriminator": discriminator_optimizer}

    def prepare(self, batch: PairBatch) -> FusionInput:
        """Augment the pairs; in paired training, render the true fusion and augment it like its target.

        In unpaired training, the face region is that of the shards, or an ellipse if the shards have none.
        """
        source, target = to_float(batch.source), to_float(batch.target)
        (source,) = self.frozen["source_augmentation"](source)
        paired = self.config.paired and batch.truth is not None
        if paired:
            truth, region = render_true_fusion(batch)
        else:
            truth = target
            region = elliptic_region(target) if batch.region is None else batch.region.float() / 255
        target, reference, region = self.frozen["augmentation"](target, [truth], [region])
        return FusionInput(self.frozen["face_crop"](source), target, reference, region, batch.same_identity, paired)

    def generator_loss(self, step: PhaseInput[FusionInput]) -> Losses:
        """Return the weighted sum of the generator's losses; pass the fused pictures to the discriminator's phase."""
        weights, batch = self.config.weights, step.batch
        source_NE = embed_source(step)
        perturbation = None if batch.paired else self.config.identity_perturbation
        target = self.perturb_identity(step, source_NE, perturbation) if perturbation else batch.target
        fused: GeneratorOutput = step.networks["generator"](batch.source_face, source_NE, target)
        step.shared["fused"] = fused.output.detach()
        parts: dict[str, Tensor] = {}
        if weights.identity:
            parts["identity"] = identity_loss(self.embed_fused(step, fused.output), source_NE)
        if weights.reconstruction:
            parts["reconstruction"] = masked_l1(fused.output, batch.target, batch.same_identity)
        if weights.truth and batch.paired:
            parts["truth"] = masked_l1(fused.output, batch.reference, torch.ones_like(batch.same_identity))
        if weights.structure:
            # Only rows with a true reference: all rows if paired, else those where source and target are one person.
            known_N = torch.ones_like(batch.same_identity) if batch.paired else batch.same_identity
            parts["structure"] = structure_loss(fused.output, batch.reference, batch.face_region, known_N)
        if weights.mask:
            parts["mask"] = mask_loss(fused.mask, batch.face_region)
        if weights.adversarial or weights.feature_matching:
            # One draw for both: features of differently augmented pictures cannot match.
            augmented_fused, augmented_reference = self.augment(fused.output, batch.reference)
            fake = step.networks["discriminator"](augmented_fused)
            if weights.adversarial:
                parts["adversarial"] = adversarial_generator_loss(fake)
            if weights.feature_matching:
                with torch.no_grad():  # the reference is constant, so only the fused pictures need a gradient
                    real = step.networks["discriminator"](augmented_reference)
                parts["feature_matching"] = feature_matching_loss(fake, real, self.config.matching_from_layer)
        if weights.cycle:
            with torch.no_grad():  # the target's embedding does not depend on the generator
                target_face = step.frozen["face_crop"](batch.target)
                target_NE = step.frozen["identity"](target_face)
            returned: GeneratorOutput = step.networks["generator"](target_face, target_NE, fused.output)
            parts["cycle"] = (returned.output - batch.target).abs().mean()
        total = torch.stack([getattr(weights, name) * value for name, value in parts.items()]).sum()
        return Losses(total, parts)

    @torch.no_grad()
    def perturb_identity(
        self, step: PhaseInput[FusionInput], source_NE: Tensor, config: IdentityPerturbationConfig
    ) -> Tensor:
        """Return the targets [N,3,S,S] in [-1,1], with the identity of same-person targets perturbed.

        Without gradients: with them, the generator would learn to hide the reference in the perturbed picture.
        """
        batch, perturbed = step.batch, step.batch.target
        if config.fused:
            other_sources = (batch.source_face.roll(1, dims=0), source_NE.roll(1, dims=0))
            perturbed = step.networks["generator"](*other_sources, perturbed).output
        perturbed = step.frozen["identity_perturbation"](perturbed, batch.face_region)
        return torch.where(batch.same_identity[:, None, None, None], perturbed, batch.target)

    def discriminator_loss(self, step: PhaseInput[FusionInput]) -> Losses:
        """Return the adversarial loss of references (real) against the fused pictures of this step (fake)."""
        discriminator = step.networks["discriminator"]
        count = len(step.batch)
        # One forward pass for both, because the distributed wrapper expects one forward for each backward pass.
        output = discriminator(torch.cat(self.augment(step.batch.reference, step.shared["fused"])))
        real = output._replace(logits=[logits[:count] for logits in output.logits])
        fake = output._replace(logits=[logits[count:] for logits in output.logits])
        loss = adversarial_discriminator_loss(real, fake)
        # 1: all real patches are classified as real; 0: chance. Near 1 the discriminator memorises its pictures.
        sign = torch.stack([logits.detach().float().sign().mean() for logits in real.logits]).mean()
        parts = {"discriminator": loss, "discriminator_real_sign": sign}
        if self.discriminator_augmentation is not None:
            parts["augmentation_probability"] = self.discriminator_augmentation.probability.clone()
        return Losses(loss, parts)

    def gradient_penalty_loss(self, step: PhaseInput[FusionInput]) -> Losses:
        """Lazy R1: gamma / 2 x interval x |grad|^2, computed only on every interval-th step."""
        # Augment before differentiating: the penalty then applies to the discriminator's actual inputs, and torch has
        # no second derivative of a warp.
        (image,) = self.augment(step.batch.reference)
        image = image.detach().requires_grad_(True)
        real = step.networks["discriminator"](image)
        penalty = gradient_penalty(real, image)
        gamma, interval = self.config.weights.gradient_penalty, self.config.gradient_penalty_interval
        # The bias of the head has no gradient here, but the distributed wrapper waits for every parameter.
        touched = torch.stack([logits.sum() for logits in real.logits]).sum() * 0
        return Losses(penalty * (gamma / 2 * interval) + touched, {"gradient_penalty": penalty})

    def augment(self, *pictures: Tensor) -> tuple[Tensor, ...]:
        """Augment the discriminator's inputs, all by the same changes, if adaptive augmentation is on."""
        if self.discriminator_augmentation is None:
            return pictures
        augmented: tuple[Tensor, ...] = self.discriminator_augmentation(*pictures)
        return augmented

    def adapt(self, losses: Mapping[str, Tensor], num_images: int) -> None:
        """Update the probability of the discriminator's augmentation."""
        if self.discriminator_augmentation is not None and "discriminator_real_sign" in losses:
            self.discriminator_augmentation.update(losses["discriminator_real_sign"], num_images)

    def embed_fused(self, step: PhaseInput[FusionInput], fused_NCHW: Tensor) -> Tensor:
        """Embed fused faces, randomly shifted and blurred: a fixed pattern could fool the encoder on a fixed crop."""
        face = step.frozen["face_crop"](fused_NCHW, jitter_views(fused_NCHW))
        embedding: Tensor = step.frozen["identity"](degrade_resolution(face, 0.5))
        return embedding

    @torch.no_grad()
    def fuse(self, networks: Mapping[str, nn.Module], source_NCHW: Tensor, target_NCHW: Tensor) -> GeneratorOutput:
        """Fuse crops in [-1,1] without augmentation."""
        face = self.frozen["face_crop"](source_NCHW)
        fused: GeneratorOutput = networks["generator"](face, self.frozen["identity"](face), target_NCHW)
        return fused

    @torch.no_grad()
    def preview(self, networks: Mapping[str, nn.Module], batch: PairBatch) -> Tensor | None:
        """Draw rows of source, target, fused, mask and, if known, true fusion."""
        source, target = to_float(batch.source), to_float(batch.target)
        fused = self.fuse(networks, source, target)
        columns = [source, target, fused.output, fused.mask.expand_as(target) * 2 - 1]
        if batch.truth is not None:
            columns.append(render_true_fusion(batch)[0])
        return torch.stack([to_uint8(column) for column in columns], dim=1)

    @torch.no_grad()
    def measure(self, networks: Mapping[str, nn.Module], batch: PairBatch) -> dict[str, Tensor]:
        """Measure pairs of held-out people, [N] each; the scores of the supervising encoder are not independent."""
        source, target = to_float(batch.source), to_float(batch.target)
        fused = self.fuse(networks, source, target)
        embed, face_crop = self.frozen["identity"], self.frozen["face_crop"]
        fused_NE, source_NE, target_NE = (embed(face_crop(image)) for image in (fused.output, source, target))
        to_source, to_target = (fused_NE * source_NE).sum(dim=1), (fused_NE * target_NE).sum(dim=1)
        columns = {
            "identity_cosine": to_source,
            "nearer_to_source": (to_source > to_target).float(),
            "mask_mean": fused.mask.mean(dim=(1, 2, 3)),
        }
        if batch.truth is not None:
            columns["l1_to_truth"] = (fused.output - render_true_fusion(batch)[0]).abs().mean(dim=(1, 2, 3))
        return columns

    def summarise(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the mean of each column, as `validation_<name>`."""
        return {f"validation_{name}": float(column.mean()) for name, column in columns.items()}


def embed_source(step: PhaseInput[FusionInput]) -> Tensor:
    with torch.no_grad():  # the source does not depend on the generator
        embedding: Tensor = step.frozen["identity"](step.batch.source_face)
    return embedding
