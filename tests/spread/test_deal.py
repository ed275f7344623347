"""Who gets what: every key once, shares alike."""

import pytest
from lesson.spread.deal import chunks, deal


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 7, 8, 64))
@pytest.mark.parametrize("count", (1, 5, 63, 64, 777, 4096, 65537))
def test_every_key_is_dealt_once_and_evenly(count, ranks):
    shares = deal(count, ranks)
    assert [i for share in shares for i in range(share.start, share.stop)] == list(range(count))
    sizes = [share.stop - share.start for share in shares]
    assert len(sizes) == ranks
    if count < 64 * ranks:
        assert max(sizes) - min(sizes) <= 1
    else:
        assert max(sizes) - min(sizes) < 128 and all(size % 64 == 0 for size in sizes[:-1])


@pytest.mark.parametrize("queries, rows", ((1, 128), (300, 128), (777, 100), (65536, 1024),
                                           (1048576, 32768), (1048577, 32768), (5, 1)))
def test_chunks_are_whole_blocks_and_no_larger_than_asked(queries, rows):
    found = chunks(queries, rows)
    assert (found[0].start, found[-1].stop) == (0, queries)
    assert all(one.stop == other.start for one, other in zip(found, found[1:]))
    assert all(c.stop - c.start <= rows for c in found)
    if rows >= 128:
        assert all(c.start % 128 == 0 for c in found)
