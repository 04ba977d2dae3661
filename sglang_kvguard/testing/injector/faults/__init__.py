"""The faults, by the name that a test arms them with.

State faults happen between two steps of the scheduler's loop; forward faults to the
arguments of one forward, before anybody has used them.
"""

from sglang_kvguard.testing.injector.faults import free_list, forward, page_table, pool

STATE_FAULTS = {
    fault.__name__: fault
    for fault in (
        page_table.point_at_pages_of,
        page_table.swap_entries,
        free_list.free_pages_of,
        free_list.hand_out_again,
        pool.write_into_free_pages,
    )
}

FORWARD_FAULTS = {
    fault.__name__: fault
    for fault in (
        forward.use_row_of,
        forward.read_past_the_end,
        forward.write_into_pages_of,
    )
}
