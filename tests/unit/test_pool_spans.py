"""I8: a pool whose bytes are not all known is refused by name, on real pool objects."""

import pytest

from tests.unit.engine_process import EngineProcess


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_every_byte_of_a_page_is_covered_and_none_beside_it(
    engine: EngineProcess, page_size: int
) -> None:
    report = engine.call("pool_spans:covered", page_size)
    assert report["buffers"] == 6
    assert report["bytes_per_page"] == report["pool_bytes_per_page"]
    assert report["left_in_page"] == 0 and report["lost_outside"] == 0


@pytest.mark.parametrize(
    ("pool", "named"),
    [
        ("another class", "MLATokenToKVPool"),
        ("a subclass", "Subclass"),
        ("an extra tensor", "per_token_scores"),
        ("a tensor in a container", "k_buffer_copies"),
        ("scales", "scale"),
        ("another layout", "hnd"),
    ],
)
def test_an_unknown_pool_is_refused_by_name(
    engine: EngineProcess, pool: str, named: str
) -> None:
    said = engine.call("pool_spans:refusals")[pool]
    assert named in said and "--enable-kv-guard" in said
    assert "\n" not in said
