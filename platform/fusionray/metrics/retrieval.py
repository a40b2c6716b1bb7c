"""Retrieval: nearest templates of a gallery, and cosine similarity between embeddings.

Shape suffixes: N pictures, P people, E embedding length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Embeddings = NDArray[np.floating]


class Templates(NamedTuple):
    """Templates of a gallery: `template` [P,E] of unit length; `person` [P], the sorted names of their people."""

    template: Embeddings
    person: NDArray[Any]


def build_templates(embedding_NE: Embeddings, person_N: NDArray[Any]) -> Templates:
    """Average the unit-length embeddings of each person, and normalise the mean to unit length.

    `person_N` holds names or numbers.

    Raises: ValueError without pictures, or if the mean of a person is zero or nan.
    """
    if not len(person_N):
        raise ValueError("templates need at least one gallery picture")
    person_P, index_N = np.unique(person_N, return_inverse=True)
    sum_PE = np.zeros((len(person_P), embedding_NE.shape[1]), embedding_NE.dtype)
    np.add.at(sum_PE, index_N, embedding_NE)
    length_P1 = np.linalg.norm(sum_PE, axis=1, keepdims=True)
    (lost,) = np.nonzero(~(length_P1[:, 0] > 0))
    if len(lost):
        raise ValueError(f"gallery pictures of {person_P[lost[0]]!s}: the mean of their embeddings is zero")
    return Templates(sum_PE / length_P1, person_P)


def retrieve(embedding_NE: Embeddings, template_PE: Embeddings) -> NDArray[np.int64]:
    """Return the index [N] of the template that is most similar to each embedding by cosine; the first of equals."""
    index_N: NDArray[np.int64] = (embedding_NE @ template_PE.T).argmax(axis=1)
    return index_N


def cosine_similarity(first_NE: Embeddings, second_NE: Embeddings) -> Embeddings:
    """Return the cosine similarity of each pair of unit-length embeddings: [N]."""
    cosine_N: Embeddings = np.einsum("ne,ne->n", first_NE, second_NE)
    return cosine_N


def is_nearer_to_source(fused_NE: Embeddings, source_NE: Embeddings, target_NE: Embeddings) -> NDArray[np.bool_]:
    """Return which fused faces are nearer to their source than to their target: bool [N]."""
    nearer_N: NDArray[np.bool_] = cosine_similarity(fused_NE, source_NE) > cosine_similarity(fused_NE, target_NE)
    return nearer_N
