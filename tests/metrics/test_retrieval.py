from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.metrics.retrieval import build_templates, cosine_similarity, is_nearer_to_source, retrieve


def unit(values: NDArray[np.floating]) -> NDArray[np.float32]:
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def build_people(
    spread: float, *, people: int = 20, pictures: int = 6, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    random = np.random.default_rng(seed)
    centres = random.standard_normal((people, 32))
    person = np.tile(np.arange(people), pictures)
    return unit(centres[person] + spread * random.standard_normal((len(person), 32))), np.char.mod("p%d", person)


def test_a_template_is_the_mean_direction_of_a_persons_pictures() -> None:
    embedding, person = build_people(0.5)
    templates = build_templates(embedding, person)
    assert templates.person.tolist() == sorted(set(person.tolist()))
    for template, name in zip(templates.template, templates.person, strict=True):
        mean = embedding[person == name].mean(axis=0)
        np.testing.assert_allclose(template, mean / np.linalg.norm(mean), atol=1e-6)


def test_templates_do_not_depend_on_the_order_of_the_pictures() -> None:
    embedding, person = build_people(0.5)
    order = np.random.default_rng(1).permutation(len(person))
    shuffled = build_templates(embedding[order], person[order])
    templates = build_templates(embedding, person)
    assert shuffled.person.tolist() == templates.person.tolist()
    np.testing.assert_allclose(shuffled.template, templates.template, atol=1e-6)


def test_new_pictures_are_retrieved_as_a_count_over_all_templates_would() -> None:
    embedding, person = build_people(1.5)
    enrolled = np.arange(len(person)) < 60
    template, names = build_templates(embedding[enrolled], person[enrolled])
    found = retrieve(embedding[~enrolled], template)
    slow = [max(range(len(template)), key=lambda index: float(picture @ template[index])) for picture in embedding[60:]]
    assert found.tolist() == slow
    share = (names[found] == person[~enrolled]).mean()
    assert 0.5 < share < 1


def test_well_separated_people_are_all_retrieved() -> None:
    embedding, person = build_people(0.1)
    template, names = build_templates(embedding[:60], person[:60])
    assert (names[retrieve(embedding[60:], template)] == person[60:]).all()


def test_a_constant_encoder_retrieves_the_first_person() -> None:
    same = np.ones((12, 1), np.float32)
    template, names = build_templates(same, np.repeat(np.arange(4), 3))
    assert (names[retrieve(same, template)] == np.repeat(np.arange(4), 3)).mean() == 0.25


def test_pictures_that_cancel_out_give_no_template() -> None:
    embedding = np.array([[1, 0], [0, 1], [0, -1]], np.float32)
    with pytest.raises(ValueError, match="anna"):
        build_templates(embedding, np.array(["bert", "anna", "anna"]))
    with pytest.raises(ValueError, match="bert"):
        build_templates(embedding * np.nan, np.array(["bert", "bert", "bert"]))
    with pytest.raises(ValueError, match="at least one"):
        build_templates(embedding[:0], np.array([]))


def test_cosines_are_taken_pair_by_pair() -> None:
    first, _ = build_people(1.0, seed=2)
    second, _ = build_people(1.0, seed=3)
    slow = [float(np.dot(one, other)) for one, other in zip(first, second, strict=True)]
    np.testing.assert_allclose(cosine_similarity(first, second), slow, atol=1e-6)


def test_a_face_between_both_is_not_nearer_to_its_source() -> None:
    source, target = np.tile([[1.0, 0.0]], (3, 1)), np.tile([[0.0, 1.0]], (3, 1))
    fused = unit(np.array([[2.0, 1.0], [1.0, 1.0], [1.0, 2.0]]))
    assert is_nearer_to_source(fused, source, target).tolist() == [True, False, False]
