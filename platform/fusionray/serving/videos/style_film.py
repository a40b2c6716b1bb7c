"""The film of a job of style transfer: styles and film with consent, and as the policy for targets permits."""

from __future__ import annotations

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.runtime.style_transfer.styles import mix_styles
from fusionray.runtime.style_transfer.stylizer import Stylizer, name_styles
from fusionray.safety.audit import hash_bytes
from fusionray.safety.consent import build_policy
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.pipeline.picture_codec import name_picture
from fusionray.serving.schema import PictureOptions
from fusionray.serving.videos.maker import FilmMaker, PreparedFilm
from fusionray.video.style_transfer.report import describe_painting
from fusionray.video.style_transfer.work import StyleTask, StyleWork, StyleWorker


class StyleFilmMaker(FilmMaker):
    """Paint a film."""

    task, role, stem = STYLE_TRANSFER, "content", "painted"

    def prepare(self, inputs: JobInputs, bundle: Bundle) -> PreparedFilm:
        """Load the models, and encode the styles.

        Raises: ImageRejected, ConsentRefused, TargetRefused; BundleInvalid, ProviderUnavailable; OSError.
        """
        options = PictureOptions(**{**self.options["picture"], "consent": inputs.consent})
        stylizer = Stylizer(bundle, self.runtime(), precision=self.order.version.precision)
        consent, owner = build_policy(self.config.consent), self.order.folder.record.owner
        consent.check(self.film_sha256, None, options.consent, owner)
        encoded, hashes = [], {}
        for name, data in zip(name_styles(len(inputs.styles)), inputs.styles, strict=True):
            with name_picture(name):
                style = self.codec.decode(data)
            hashes[name] = hash_bytes(data)
            consent.check(hashes[name], None, options.consent, owner)
            if self.policy is not None:
                self.policy.check(style)
            encoded.append(stylizer.encode_style(style))
        painting = self.options["painting"]
        task = StyleTask(
            self.film.target,
            self.find_suffix(),
            self.order.version.location,
            self.config.tracking_uri,
            mix_styles(encoded, painting["weights"]),
            painting["strength"],
            **self.describe_output(mark=options.mark),
        )
        return PreparedFilm(
            StyleWork(task, self.order.version.bundle),
            self.check_frames(StyleWorker(task, stylizer.tiled)),
            lambda made: describe_painting(made, self.film.target.name, len(encoded), bundle.description.name),
            hashes,
            bundle.description.name,
        )
