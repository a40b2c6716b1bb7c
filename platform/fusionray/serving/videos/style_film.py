"""The film of a job of style transfer: styles and film with consent, and as the policy for targets permits."""

from __future__ import annotations

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.errors import ImageRejected
from fusionray.runtime.style_transfer.styles import mix_styles
from fusionray.runtime.style_transfer.stylizer import Stylizer, name_pictures
from fusionray.safety.audit import hash_bytes
from fusionray.safety.consent import build_policy
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.schema import PictureOptions
from fusionray.serving.videos.maker import FilmMaker, PreparedFilm, hash_file
from fusionray.serving.videos.target_check import CheckedStyleWorker
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
        consent, policy, owner = build_policy(self.config.consent), self.open_policy(), self.order.folder.record.owner
        consent.check(hash_file(self.film.target), None, options.consent, owner)
        named = name_pictures(b"", inputs.styles)
        del named["content"]
        encoded, hashes = [], {}
        for name, data in named.items():
            try:
                style = self.codec.decode(data)
            except ImageRejected as error:
                raise ImageRejected(error.reason, f"{name} picture: {error}") from None
            hashes[name] = hash_bytes(data)
            consent.check(hashes[name], None, options.consent, owner)
            if policy is not None:
                policy.check(style)
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
        worker = StyleWorker(task, stylizer.tiled)
        if policy is not None:
            worker = CheckedStyleWorker(
                task, stylizer.tiled, policy, self.config.videos.policy_seconds, self.progress.check
            )
        return PreparedFilm(
            StyleWork(task, self.order.version.bundle),
            worker,
            lambda made: describe_painting(made, self.film.target.name, len(encoded), bundle.description.name),
            hashes,
            bundle.description.name,
        )
