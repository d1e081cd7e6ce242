"""The documents of a test set, and the baselines made from them."""

import pytest

from pipeline.evaluation.examples import Examples, mean_words
from pipeline.evaluation.systems import derangement, lead, lead_words
from pipeline.shards import Dataset


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_a_derangement_gives_each_document_another_and_uses_each_once(count):
    donors = derangement(count)
    assert sorted(donors) == list(range(count))
    assert all(donor != index for index, donor in enumerate(donors))
    assert donors == derangement(count)


def test_the_source_length_can_be_chosen(dataset_folder):
    dataset = Dataset(dataset_folder)
    whole, cut = Examples(dataset, source_length=0), Examples(dataset, source_length=9)
    for index in range(len(dataset)):
        stored = dataset[index].source
        assert whole[index].source.tolist() == stored.tolist()
        assert cut[index].source.tolist() == [*stored[:8].tolist(), 1]
    assert len(Examples(dataset, limit=5)) == 5
    assert len(Examples(dataset, limit=500)) == 26


def test_lead_is_the_first_sentences():
    assert lead("One is here. Two is there.\nThree.", 2) == "One is here. Two is there."
    assert lead("One is here.", 3) == "One is here."


def test_lead_words_are_as_many_as_a_reference_has():
    assert lead_words("One is\nhere.  Two is there.", 4) == "One is here. Two"
    assert lead_words("One", 3) == "One"
    assert mean_words(["a b", "a b c", "a\nb c d"]) == 3
    assert mean_words([""]) == mean_words([]) == 1
