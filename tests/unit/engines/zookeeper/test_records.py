"""Records are decoded as they were encoded, and fit into a packet."""

from __future__ import annotations

import json
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from mainspring import namespaces
from mainspring.engines.zookeeper import records
from mainspring.engines.zookeeper.engine import MAX_VALUE
from mainspring.jobs.model import Job, Options, Priority, Retry, State

BYTES = st.binary(max_size=200) | st.text(max_size=100).map(str.encode)


@given(
    st.builds(
        Job,
        id=st.integers(1, 2**62),
        function=BYTES.filter(bool).map(partial(namespaces.key, namespaces.DEFAULT)),
        payload=BYTES,
        unique=BYTES,
        priority=st.sampled_from([int(one) for one in Priority]),
        state=st.sampled_from([int(one) for one in State]),
        created_us=st.integers(0, 2**62),
        attempt=st.integers(0, 99),
        result=BYTES,
        error=BYTES,
        foreground=st.booleans(),
        options=st.none() | st.builds(Options, retry=st.none() | st.builds(Retry), reducer=st.none() | BYTES),
    )
)
def test_a_job_is_decoded_as_it_was_encoded(job: Job) -> None:
    data = records.encode_job(job, "H:n1:1")
    assert records.decode_job(records.decode(data)) == job
    assert json.loads(data)["handle"] == "H:n1:1"


def test_text_is_readable_and_other_bytes_are_base64() -> None:
    record = json.loads(records.encode_job(Job(1, b"f", "grüße\n".encode(), unique=b"\x00"), "h"))
    assert (record["function"], record["payload"], record["unique_base64"]) == ("f", "grüße\n", "AA==")


def test_the_largest_payload_fits_into_a_packet() -> None:
    for payload in (b"\xff", b'"', b"\n", "ü".encode()):
        large = payload * (MAX_VALUE // len(payload))
        assert len(records.encode_job(Job(1, b"f", large), "h")) < records.MAX_RECORD


def test_the_error_of_a_large_failed_job_is_shortened() -> None:
    error = json.dumps({"type": "Oops", "message": "m" * MAX_VALUE, "traceback": "t" * 1000}).encode()
    job = Job(1, b"f", b"\xff" * MAX_VALUE, error=error, state=State.FAILED)
    data = records.encode_job(job, "h")
    assert len(data) < records.MAX_RECORD
    back = records.decode_job(records.decode(data))
    assert back.payload == job.payload
    assert json.loads(back.error) == {"type": "Oops", "message": f"{'m' * 1000} (shortened)"}
    whole = Job(1, b"f", b"p", error=error, state=State.FAILED)
    assert records.decode_job(records.decode(records.encode_job(whole, "h"))).error == error
