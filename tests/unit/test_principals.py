"""Sources of principals, and the files that their keys are in."""

from __future__ import annotations

import os

import pytest

from sglang_kvguard.core.policy_error import PolicyError
from sglang_kvguard.core.principals import PrincipalSource
from sglang_kvguard.core.secret_file import read_secret
from sglang_kvguard.core.signed_header import MAX_SKEW, sign, verify

KEY = b"k" * 32
NOW = 1_790_000_000


def identify(source: str, *values: bytes, name: bytes = b"authorization", now: float = NOW):
    return PrincipalSource.parse(source).identify([(name, v) for v in values], now, KEY)


class TestParsing:
    @pytest.mark.parametrize(
        "text, kind, header",
        [
            ("none", "none", b""),
            ("bearer", "bearer", b"authorization"),
            ("caller", "caller", b""),
            ("header:X-Tenant", "header", b"x-tenant"),
            ("signed-header:X-Tenant", "signed-header", b"x-tenant"),
        ],
    )
    def test_accepted(self, text, kind, header):
        assert PrincipalSource.parse(text) == PrincipalSource(kind, header)

    @pytest.mark.parametrize(
        "text",
        ["", "Bearer", "bearer:X", "none:", "header", "header:", "header:a b", "header:a:b",
         "signed-header", "header:X-Ten\u00e4nt", "tenant", None],
    )  # fmt: skip
    def test_refused_in_one_line_that_names_the_flag(self, text):
        with pytest.raises(PolicyError, match="--kv-guard-principal") as caught:
            PrincipalSource.parse(text)
        assert "\n" not in str(caught.value)


class TestBearer:
    def test_token(self):
        assert identify("bearer", b"Bearer abc.DEF-1_2~3+4/5==") == b"abc.DEF-1_2~3+4/5=="
        assert identify("bearer", b"bEARER abc") == b"abc"

    @pytest.mark.parametrize(
        "value",
        [b"", b"Bearer", b"Bearer ", b"Bearer  a", b"Bearer a b", b"Bearer a,b", b" Bearer a",
         b"Basic YTpi", b"Bearer a\x00", b"Bearer a\n", b"Bearer \xff", b"Bearer " + b"a" * 9000],
    )  # fmt: skip
    def test_nothing_else(self, value):
        assert identify("bearer", value) is None

    def test_two_headers_name_nobody(self):
        assert identify("bearer", b"Bearer a", b"Bearer a") is None

    def test_missing(self):
        assert identify("bearer") is None


class TestHeader:
    def test_value(self):
        assert identify("header:X-Tenant", b"tenant a", name=b"x-tenant") == b"tenant a"
        assert identify("header:X-Tenant", b"t", name=b"x-tenant") == b"t"

    @pytest.mark.parametrize("value", [b"", b" ", b" a", b"a ", b"a\x00b", b"a\tb", b"\x7f"])
    def test_nothing_else(self, value):
        assert identify("header:X-Tenant", value, name=b"x-tenant") is None

    def test_two_headers_name_nobody(self):
        assert identify("header:X-Tenant", b"a", b"b", name=b"x-tenant") is None

    def test_none_and_caller_look_at_no_header(self):
        for source in ("none", "caller"):
            assert identify(source, b"a", name=b"") is None


class TestSignedHeader:
    def test_vector(self):
        value = (
            "v1;t=1790000000;p=dGVuYW50LWE;s="
            "c61223b32ef5b7fada556980d92bc10a999cbaa64c931b7a38e843b9c45c8b9a"
        )
        assert sign(KEY, b"tenant-a", NOW) == value
        assert identify("signed-header:X", value.encode(), name=b"x") == b"tenant-a"

    @pytest.mark.parametrize("offset", [-MAX_SKEW, 0, MAX_SKEW])
    def test_within_the_skew(self, offset):
        assert verify(KEY, sign(KEY, b"a", NOW).encode(), NOW + offset) == b"a"

    @pytest.mark.parametrize("offset", [-MAX_SKEW - 1, MAX_SKEW + 1, 10**9])
    def test_outside_the_skew(self, offset):
        assert verify(KEY, sign(KEY, b"a", NOW).encode(), NOW + offset) is None

    def test_another_key(self):
        assert verify(b"x" * 32, sign(KEY, b"a", NOW).encode(), NOW) is None

    def test_every_changed_byte_is_seen(self):
        value = sign(KEY, b"tenant-a", NOW).encode()
        for at in range(len(value)):
            for other in (b"0", b"f", b"A", b";"):
                changed = value[:at] + other + value[at + 1 :]
                assert changed == value or verify(KEY, changed, NOW) is None, changed

    @pytest.mark.parametrize(
        "change",
        [
            lambda v: v + b" ",
            lambda v: b" " + v,
            lambda v: v + b"\n",
            lambda v: v.replace(b";p=", b"; p="),
            lambda v: v.replace(b"t=1", b"t=01"),
            lambda v: v.replace(b"t=1", b"t=+1"),
            lambda v: v.replace(b";s=", b"==;s="),
            lambda v: v[:-64] + v[-64:].upper(),
            lambda v: v.replace(b"v1", b"v2"),
            lambda v: v.replace(b"p=YQ", b"p=YR"),  # the same byte in unused bits
        ],
    )
    def test_one_spelling_only(self, change):
        value = sign(KEY, b"a", NOW).encode()
        assert change(value) != value
        assert verify(KEY, change(value), NOW) is None


class TestSecretFile:
    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "secret"
        path.write_bytes(b"s" * 32)
        path.chmod(0o600)
        return path

    def read(self, path):
        return read_secret(str(path), "--kv-guard-secret-file")

    def test_the_whole_file(self, file):
        file.write_bytes(b"s" * 32 + b"\n")
        assert self.read(file) == b"s" * 32 + b"\n"

    def test_through_a_link(self, file, tmp_path):
        link = tmp_path / "link"
        link.symlink_to(file)
        assert self.read(link) == b"s" * 32

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644, 0o610])
    def test_others_may_not_access_it(self, file, mode):
        file.chmod(mode)
        with pytest.raises(PolicyError, match=f"--kv-guard-secret-file .*mode {mode:03o}.*chmod 600"):
            self.read(file)

    @pytest.mark.parametrize("size", [0, 31, 4097])
    def test_size(self, file, size):
        file.write_bytes(b"s" * size)
        with pytest.raises(PolicyError, match="--kv-guard-secret-file .*32 to 4096 bytes"):
            self.read(file)

    def test_missing(self, tmp_path):
        with pytest.raises(PolicyError, match="--kv-guard-secret-file .*No such file"):
            self.read(tmp_path / "none")

    def test_a_folder_and_a_pipe_are_no_files(self, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe, 0o600)
        for path in (tmp_path, pipe):
            with pytest.raises(PolicyError, match="not a regular file"):
                self.read(path)

    def test_somebody_elses(self, file, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: os.stat(file).st_uid + 1)
        with pytest.raises(PolicyError, match="belongs to user id"):
            self.read(file)
