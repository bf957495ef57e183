from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as s

from loadtest.quality.shard import WHOLE, Shard, parse_shard
from shared.errors import ConfigError


def shards_of(count):
    return [Shard(number=number, count=count) for number in range(1, count + 1)]


@given(items=s.integers(0, 200), count=s.integers(1, 20))
def test_every_item_belongs_to_one_shard_and_shards_are_alike_in_size(items, count):
    dealt = [list(shard.own(range(items))) for shard in shards_of(count)]
    assert sorted(item for own in dealt for item in own) == list(range(items))
    sizes = [len(own) for own in dealt]
    assert max(sizes) - min(sizes) <= 1
    assert all(own == sorted(own) for own in dealt)


def test_no_shard_gets_all_of_the_long_prompts():
    mixture = list(product(range(20), "abcd", (1024, 2048, 4096, 7168)))
    for shard in shards_of(8):
        assert {length for _, _, length in shard.own(mixture)} == {1024, 2048, 4096, 7168}


def test_the_whole_is_everything():
    assert list(WHOLE.own(range(5))) == list(range(5))
    assert WHOLE.part_of(150) == 150


def test_what_is_wanted_is_split_and_rounded_up():
    assert [shard.part_of(150) for shard in shards_of(4)] == [38] * 4


def test_a_shard_is_read_from_text():
    assert parse_shard(" 2/8") == Shard(number=2, count=8)


@pytest.mark.parametrize("text", ["", "2", "2/", "a/b", "2/8/9", "-1/8", "0/8", "9/8", "1/0"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ConfigError, match="shard"):
        parse_shard(text)
