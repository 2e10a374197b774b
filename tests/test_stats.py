"""DecodeStats against enumeration: every sequence of rounds with D <= 3 and up to 3 rounds."""

import itertools
import json

import pytest

from eagle3_ext.stats import DecodeStats

ROUNDS = [(drafted, accepted) for drafted in range(4) for accepted in range(drafted + 1)]
KEYS = [
    "rounds",
    "drafted",
    "accepted",
    "emitted",
    "accept_length",
    "acceptance_per_position",
    "conditional_acceptance_per_position",
    "tokens_per_s",
]


def counted(rounds):
    stats = DecodeStats()
    for drafted, accepted in rounds:
        stats.record_round(drafted, accepted)
    return stats


@pytest.mark.parametrize("length", [1, 2, 3])
def test_formulas_by_enumeration(length):
    for rounds in itertools.product(ROUNDS, repeat=length):
        stats = counted(rounds)
        emitted = sum(accepted + 1 for _, accepted in rounds)
        assert stats.rounds == length
        assert stats.drafted == sum(drafted for drafted, _ in rounds)
        assert stats.accept_length == pytest.approx(emitted / length)
        width = max(drafted for drafted, _ in rounds)
        cumulative = [sum(accepted > i for _, accepted in rounds) / length for i in range(width)]
        assert stats.acceptance_per_position == pytest.approx(cumulative)
        assert sum(cumulative) == pytest.approx(stats.accept_length - 1)
        for i, rate in enumerate(stats.conditional_acceptance_per_position):
            tried = [accepted > i for drafted, accepted in rounds if drafted > i and accepted >= i]
            assert rate == (sum(tried) / len(tried) if tried else None)


def test_conditional_rates_multiply_to_the_cumulative_rate_at_constant_width():
    stats = counted([(3, 0), (3, 1), (3, 3), (3, 2), (3, 3)])
    assert stats.acceptance_per_position == [0.8, 0.6, 0.4]
    assert stats.conditional_acceptance_per_position == pytest.approx([4 / 5, 3 / 4, 2 / 3])


def test_zero_over_zero_is_none():
    stats = DecodeStats(emitted=1)
    assert stats.accept_length is None and stats.tokens_per_s is None
    assert stats.acceptance_per_position == [] and stats.conditional_acceptance_per_position == []
    assert counted([(2, 0)]).conditional_acceptance_per_position == [0.0, None]


def test_plain_decoding_has_accept_length_one_and_empty_lists():
    stats = counted([(0, 0)] * 5)
    assert (stats.rounds, stats.drafted, stats.accept_length) == (5, 0, 1.0)
    assert stats.acceptance_per_position == [] and stats.conditional_acceptance_per_position == []


def test_merging_equals_counting_together():
    first, second = [(1, 1), (0, 0)], [(3, 2), (2, 0), (3, 3)]
    merged = sum([counted(first), counted(second)], DecodeStats())
    assert merged == counted(first + second)
    a, b = DecodeStats(emitted=10, seconds=2.0), DecodeStats(emitted=2, seconds=1.0)
    assert (a + b).tokens_per_s == pytest.approx(4.0)
    assert a.emitted == 10, "merging leaves its operands alone"


def test_to_dict_has_the_documented_keys_and_is_json():
    stats = counted([(2, 1)])
    assert list(stats.to_dict()) == KEYS
    assert json.loads(json.dumps(stats.to_dict()))["conditional_acceptance_per_position"] == [1.0, 0.0]


@pytest.mark.parametrize("drafted, accepted", [(2, 3), (2, -1)])
def test_impossible_rounds_are_refused(drafted, accepted):
    with pytest.raises(ValueError, match=f"accepted {accepted} of {drafted}"):
        DecodeStats().record_round(drafted, accepted)
