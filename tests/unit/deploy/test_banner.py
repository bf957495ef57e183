from deploy.banner import capacity_texts, rejection_texts
from protos.tandem.v1 import control_pb2


def test_capacity_in_tokens_and_in_requests_at_full_context():
    load = control_pb2.GetLoadResponse(
        kv_tokens=23_296, total_pages=2_912, max_batch=32, total_slab_bytes=512 << 20
    )
    assert capacity_texts(load, context=8_192) == [
        "KV cache 23,296 tokens in 2,912 pages of two length groups",
        "2.8 unpruned requests of 8,192 tokens at once",
        "32 sequences a step",
        "slab 512 MiB",
    ]


def test_a_transport_that_only_a_decode_worker_rejects_is_shown_and_no_text_twice():
    backend, nixl = "fa4: no GPU", "nixl: package nixl-cu13 is not installed"
    prefill = control_pb2.GetInfoResponse(rejected_backends=[backend])
    decode = control_pb2.GetInfoResponse(rejected_transports=[nixl])
    assert rejection_texts([prefill, decode, decode]) == [backend, nixl]
