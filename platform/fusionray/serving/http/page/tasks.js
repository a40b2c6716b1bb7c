// What the page can ask the service for: the pictures that go in, the words, and the fields of the form.

import { access, buildForm } from "./api.js";

const find = (id) => document.getElementById(id);

/** The fields that every form has. */
function commonFields() {
  return {
    model: find("model").value,
    format: new FormData(find("form")).get("format"),
    // Left out rather than false: the service may want its mark on every picture.
    mark: find("mark").checked && "true",
    consent: access.token,
  };
}

/** Of each task: `roles` of its pictures, of which `kept` becomes the result; the words of its button. */
export const TASKS = {
  face_fusion: {
    roles: ["source", "target"],
    kept: "target",
    path: "v1/fuse",
    verb: "Fuse",
    busy: "Fusing",
    file: "fused-by-ai",
    write: ({ source, target }) =>
      buildForm({
        [source.identity ? "identity" : "source"]: source.identity ?? source.blob,
        target: target.blob,
        faces: new FormData(find("form")).get("faces"),
        skin: new FormData(find("form")).get("skin"),
        pixel_boost: new FormData(find("form")).get("pixel_boost"),
        ...commonFields(),
      }),
  },
  style_transfer: {
    roles: ["content", "style"],
    kept: "content",
    path: "v1/stylize",
    verb: "Paint",
    busy: "Painting",
    file: "painted-by-ai",
    write: ({ content, style }) =>
      buildForm({
        content: content.blob,
        style: style.blob,
        strength: String(find("strength").valueAsNumber / 100),
        ...commonFields(),
      }),
  },
};

/** The task of a model; cards of face fusion name none. */
export const taskOf = (model) => model.task ?? "face_fusion";
