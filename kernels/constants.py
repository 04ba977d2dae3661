"""The numbers of ``layout`` in the one form that Triton lets a kernel read as a global."""

from __future__ import annotations

import triton.language as tl

from . import layout

PAGE_BIRTH = tl.constexpr(layout.PAGE_BIRTH)
PAGE_NAMESPACE = tl.constexpr(layout.PAGE_NAMESPACE)
PAGE_OWNER = tl.constexpr(layout.PAGE_OWNER)
PAGE_FLAGS = tl.constexpr(layout.PAGE_FLAGS)
PAGE_FIELDS = tl.constexpr(layout.PAGE_FIELDS)

LIVE = tl.constexpr(layout.LIVE)
PUBLISHED = tl.constexpr(layout.PUBLISHED)
TAINTED = tl.constexpr(layout.TAINTED)
RETIRED = tl.constexpr(layout.RETIRED)
DIRTY = tl.constexpr(layout.DIRTY)

HISTORY_FIELDS = tl.constexpr(layout.HISTORY_FIELDS)

SEAL_OWNER = tl.constexpr(layout.SEAL_OWNER)
SEAL_NAMESPACE = tl.constexpr(layout.SEAL_NAMESPACE)
SEAL_LENGTH = tl.constexpr(layout.SEAL_LENGTH)
SEAL_DIGEST = tl.constexpr(layout.SEAL_DIGEST)
SEAL_POISON = tl.constexpr(layout.SEAL_POISON)
SEAL_FIELDS = tl.constexpr(layout.SEAL_FIELDS)

WANT_ROW = tl.constexpr(layout.WANT_ROW)
WANT_OWNER = tl.constexpr(layout.WANT_OWNER)
WANT_NAMESPACE = tl.constexpr(layout.WANT_NAMESPACE)
WANT_NEW = tl.constexpr(layout.WANT_NEW)
WANT_OFFSET = tl.constexpr(layout.WANT_OFFSET)
WANT_FRESH = tl.constexpr(layout.WANT_FRESH)
WANT_FIELDS = tl.constexpr(layout.WANT_FIELDS)

RELEASE_OFFSET = tl.constexpr(layout.RELEASE_OFFSET)
RELEASE_COUNT = tl.constexpr(layout.RELEASE_COUNT)
RELEASE_ACTOR = tl.constexpr(layout.RELEASE_ACTOR)
RELEASE_FIELDS = tl.constexpr(layout.RELEASE_FIELDS)
TREE = tl.constexpr(layout.TREE)

PUBLISH_OFFSET = tl.constexpr(layout.PUBLISH_OFFSET)
PUBLISH_COUNT = tl.constexpr(layout.PUBLISH_COUNT)
PUBLISH_ROW = tl.constexpr(layout.PUBLISH_ROW)
PUBLISH_OWNER = tl.constexpr(layout.PUBLISH_OWNER)
PUBLISH_NAMESPACE = tl.constexpr(layout.PUBLISH_NAMESPACE)
PUBLISH_START = tl.constexpr(layout.PUBLISH_START)
PUBLISH_RESEAL = tl.constexpr(layout.PUBLISH_RESEAL)
PUBLISH_FIELDS = tl.constexpr(layout.PUBLISH_FIELDS)

VERDICT_REASONS = tl.constexpr(layout.VERDICT_REASONS)
VERDICT_POSITION = tl.constexpr(layout.VERDICT_POSITION)
VERDICT_SLOT = tl.constexpr(layout.VERDICT_SLOT)
VERDICT_PAGE_OWNER = tl.constexpr(layout.VERDICT_PAGE_OWNER)
VERDICT_PAGE_NAMESPACE = tl.constexpr(layout.VERDICT_PAGE_NAMESPACE)
VERDICT_PAGE_BIRTH = tl.constexpr(layout.VERDICT_PAGE_BIRTH)
VERDICT_PAGE_FLAGS = tl.constexpr(layout.VERDICT_PAGE_FLAGS)
VERDICT_OWNER = tl.constexpr(layout.VERDICT_OWNER)
VERDICT_FIELDS = tl.constexpr(layout.VERDICT_FIELDS)

R_ROW = tl.constexpr(layout.R_ROW)
R_IDENTITY = tl.constexpr(layout.R_IDENTITY)
R_LENGTH = tl.constexpr(layout.R_LENGTH)
R_DIGEST = tl.constexpr(layout.R_DIGEST)
R_RANGE = tl.constexpr(layout.R_RANGE)
R_DEAD = tl.constexpr(layout.R_DEAD)
R_NAMESPACE = tl.constexpr(layout.R_NAMESPACE)
R_FOREIGN = tl.constexpr(layout.R_FOREIGN)
R_WRITE_TARGET = tl.constexpr(layout.R_WRITE_TARGET)
R_WRITE_OWNER = tl.constexpr(layout.R_WRITE_OWNER)
R_TAINTED = tl.constexpr(layout.R_TAINTED)
R_DIRTY = tl.constexpr(layout.R_DIRTY)
R_ALIAS = tl.constexpr(layout.R_ALIAS)
R_PUBLISH = tl.constexpr(layout.R_PUBLISH)

FAULT_KIND = tl.constexpr(layout.FAULT_KIND)
FAULT_PAGE = tl.constexpr(layout.FAULT_PAGE)
FAULT_ACTOR = tl.constexpr(layout.FAULT_ACTOR)
FAULT_PAGE_OWNER = tl.constexpr(layout.FAULT_PAGE_OWNER)
FAULT_PAGE_NAMESPACE = tl.constexpr(layout.FAULT_PAGE_NAMESPACE)
FAULT_PAGE_BIRTH = tl.constexpr(layout.FAULT_PAGE_BIRTH)
FAULT_PAGE_FLAGS = tl.constexpr(layout.FAULT_PAGE_FLAGS)
FAULT_FIELDS = tl.constexpr(layout.FAULT_FIELDS)
FAULT_SLOTS = tl.constexpr(layout.FAULT_SLOTS)

F_ALIAS = tl.constexpr(layout.F_ALIAS)
F_DIRTY = tl.constexpr(layout.F_DIRTY)
F_DOUBLE_FREE = tl.constexpr(layout.F_DOUBLE_FREE)
F_FOREIGN_FREE = tl.constexpr(layout.F_FOREIGN_FREE)
F_INVALID_FREE = tl.constexpr(layout.F_INVALID_FREE)
F_RETIRED = tl.constexpr(layout.F_RETIRED)
F_PUBLISH = tl.constexpr(layout.F_PUBLISH)

MIX_SLOT = tl.constexpr(layout.MIX_SLOT)
MIX_BIRTH = tl.constexpr(layout.MIX_BIRTH)
MIX_POSITION = tl.constexpr(layout.MIX_POSITION)
