"""Where every field of the guard's device metadata lives, and what its bits mean.

One module owns the numbers, because four parties have to agree on them: the
Triton kernels, their plain-torch references, the host code that reads verdicts,
and the tests. Nothing here imports torch or triton.

Every record is a row of ``int64`` so that one page's hot state is exactly one
32-byte sector of device memory, which is what the fence reads once a page.
"""

# -- page ledger: int64 (num_pages + 1, PAGE_FIELDS), page 0 is the engine's padding page
PAGE_BIRTH = 0  # unique over the whole run; 0 = never born
PAGE_NAMESPACE = 1
PAGE_OWNER = 2  # tag of the row incarnation that the page was born for
PAGE_FLAGS = 3
PAGE_FIELDS = 4

LIVE = 1  # born and not released
PUBLISHED = 2  # in the prefix cache: readable by its namespace, writable by nobody
TAINTED = 4  # a forward that broke an invariant may have written it
RETIRED = 8  # withheld from allocation until an operator releases it
DIRTY = 16  # was not all zero at birth: somebody wrote it after it was freed

# -- owner history: int64 (num_pages + 1, HISTORY_FIELDS), newest first
HISTORY_FIELDS = 2

# -- seals: int64 (num_rows + 1, SEAL_FIELDS), one 64-byte record a request row
SEAL_OWNER = 0
SEAL_NAMESPACE = 1
SEAL_LENGTH = 2  # number of leading row entries the digest covers
SEAL_DIGEST = 3  # sum (mod 2**64) of mix(slot, birth, position) over them
SEAL_POISON = 4  # sticky: OR of the reasons this incarnation has broken
SEAL_FIELDS = 8

# -- what the scheduler says a batch entry is: int64 (batch, WANT_FIELDS)
WANT_ROW = 0  # request row
WANT_OWNER = 1  # minted tag of the row incarnation
WANT_NAMESPACE = 2
WANT_NEW = 3  # number of tokens this forward writes for the entry
WANT_OFFSET = 4  # where they start in the flat write set (exclusive sum of WANT_NEW)
WANT_FRESH = 5  # 1: the row was just taken by this incarnation, start its seal anew
WANT_FIELDS = 8

# -- releases: int64 (chunks, RELEASE_FIELDS)
RELEASE_OFFSET = 0
RELEASE_COUNT = 1
RELEASE_ACTOR = 2  # owner tag on whose behalf, or TREE
RELEASE_FIELDS = 4
TREE = 0  # the prefix cache gives back published pages

# -- publications: int64 (chunks, PUBLISH_FIELDS)
PUBLISH_OFFSET = 0
PUBLISH_COUNT = 1  # token entries
PUBLISH_ROW = 2
PUBLISH_OWNER = 3
PUBLISH_NAMESPACE = 4
PUBLISH_START = 5  # row position of the first entry
PUBLISH_RESEAL = 6  # 1: the row lives on, carry its seal over to the new entries
PUBLISH_FIELDS = 8

# -- verdicts: int64 (batch, VERDICT_FIELDS), one a batch entry
VERDICT_REASONS = 0  # OR of the reasons below; 0 = clean
VERDICT_POSITION = 1  # lowest offending row position, -1 when the reason has none
VERDICT_SLOT = 2  # what the page table says there
VERDICT_PAGE_OWNER = 3
VERDICT_PAGE_NAMESPACE = 4
VERDICT_PAGE_BIRTH = 5
VERDICT_PAGE_FLAGS = 6
VERDICT_OWNER = 7  # tag the entry should have (WANT_OWNER), so that a verdict names its request
VERDICT_FIELDS = 8

# Reasons a fence can give. The invariant each one breaks is in core/violations.py.
R_ROW = 1 << 0  # the forward was given another row than the request's
R_IDENTITY = 1 << 1  # the row is sealed for another owner or namespace
R_LENGTH = 1 << 2  # the forward reads more or fewer entries than are sealed
R_DIGEST = 1 << 3  # the sealed entries are not the ones that were sealed
R_RANGE = 1 << 4  # an entry points outside the pool, or at the padding page
R_DEAD = 1 << 5  # an entry points at a page that is not alive
R_NAMESPACE = 1 << 6  # an entry points at a page of another namespace
R_FOREIGN = 1 << 7  # ... at an unpublished page of another owner
R_WRITE_TARGET = 1 << 8  # the write set is not what the row says
R_WRITE_OWNER = 1 << 9  # a write into a page that is published or not its own
R_TAINTED = 1 << 10  # an entry points at a tainted or retired page
R_DIRTY = 1 << 11  # a page was not zero when it was born
R_ALIAS = 1 << 12  # the allocator handed out a page that was alive or not allocatable
R_PUBLISH = 1 << 13  # the prefix cache published or substituted a page it may not

# -- faults that belong to a page rather than to a batch entry: int64 (FAULT_SLOTS + 1, FAULT_FIELDS).
# Record 0 holds the running count in its first field; fault number k (from 0) is in
# record 1 + k % FAULT_SLOTS.
FAULT_KIND = 0
FAULT_PAGE = 1
FAULT_ACTOR = 2  # owner tag that acted (TREE for the prefix cache)
FAULT_PAGE_OWNER = 3
FAULT_PAGE_NAMESPACE = 4
FAULT_PAGE_BIRTH = 5
FAULT_PAGE_FLAGS = 6
FAULT_FIELDS = 8
FAULT_SLOTS = 63

F_ALIAS = 1  # stamp: page alive, retired, or out of range
F_DIRTY = 2  # check_zero: non-zero byte at birth
F_DOUBLE_FREE = 3  # release: page not alive
F_FOREIGN_FREE = 4  # release: not the actor's to give back
F_INVALID_FREE = 5  # release: page id outside the pool
F_RETIRED = 6  # release: dirty, withheld instead of freed
F_PUBLISH = 7  # publish: page may not be published by this actor

# -- digest: odd 64-bit multipliers (splitmix64's and its golden-ratio increment,
# Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
# written as signed int64
MIX_SLOT = -7046029254386353131  # 0x9E3779B97F4A7C15
MIX_BIRTH = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_POSITION = -7723592293110705685  # 0x94D049BB133111EB
