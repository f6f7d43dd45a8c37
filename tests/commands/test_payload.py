"""The audit payload: canonical, one line, read strictly."""

import base64

import pytest

from infrarsi.codec import canonical
from infrarsi.commands.payload import Audit, Payload, decode_trailer, encode_trailer, message, parse_payload, trailers
from infrarsi.errors import InfrarsiError
from infrarsi.records import Assignment, Candidate, Verdict

PAYLOAD = Payload(
    contract="c" * 64,
    run="20260101-000000-abcd",
    evidence="e" * 40,
    calibration="d" * 64,
    base_commit="b" * 40,
    base_tree="1" * 40,
    result_tree="2" * 40,
    patch_id="3" * 40,
    settings=(Assignment("flag", "--batch_size", 16),),
    speedup=1.91,
    low=1.8,
    high=2.02,
    pairs=5,
    error_rate=0.05,
    records=("ver1-aa", "ver1-bb"),
)
VERDICT = Verdict("accepted", Candidate(), "2" * 40, 1.91, 1.8, 2.02, 0.02, 0.05, (), 1, 2, "clear")


def test_trailer_round_trip_is_one_line() -> None:
    audit = Audit(canonical(PAYLOAD), "-----BEGIN SSH SIGNATURE-----\nabc\n-----END SSH SIGNATURE-----\n")
    line = encode_trailer(audit)
    assert "\n" not in line
    assert decode_trailer(line) == audit
    assert parse_payload(decode_trailer(line).payload) == PAYLOAD


@pytest.mark.parametrize(
    "value", ["", "not base64!", base64.b64encode(b"[1]").decode(), base64.b64encode(b"{}").decode()]
)
def test_a_malformed_trailer_is_an_error_and_not_an_audit(value: str) -> None:
    with pytest.raises(InfrarsiError):
        decode_trailer(value)


def test_a_payload_must_be_canonical_and_known_in_every_key() -> None:
    """R-I2: the signature covers bytes; another spelling of the same values, or an added key, is refused."""
    good = canonical(PAYLOAD)
    for changed in (
        good.replace(b",", b", ", 1),
        good[:-1] + b',"zzz":1}',
        good.replace(b"1.91", b"NaN"),
        b"{}",
        b"no json",
    ):
        with pytest.raises(InfrarsiError):
            parse_payload(changed)


def test_the_trailers_are_the_last_paragraph() -> None:
    lines = trailers(PAYLOAD, VERDICT, Audit(b"{}", "s"))
    text = message("Subject", "Body\n\nmore", lines)
    last = text.rstrip("\n").split("\n\n")[-1].splitlines()
    assert [line.split(": ", 1)[0] for line in last] == [key for key, _ in lines]
    assert "1.910 [1.800, 2.020] pairs=0" in text
