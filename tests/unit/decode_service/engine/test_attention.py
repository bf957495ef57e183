import pytest
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.sparsity.base import Evidence


@pytest.mark.parametrize("slots", [1, 2, 15, 63, 500])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (7, 1)])
def test_it_is_softmax_attention_with_scores_by_kv_head(
    slots: int, heads: int, kv_heads: int
) -> None:
    q_HD = torch.randn(heads, 60)
    k_TGD, v_TGD = torch.randn(slots, kv_heads, 60), torch.randn(slots, kv_heads, 60)
    result = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.SCORES)
    group = heads // kv_heads
    alphas = []
    for head in range(heads):
        logits_T = k_TGD[:, head // group].double() @ q_HD[head].double() / 60**0.5
        alpha_T = torch.softmax(logits_T, dim=0)
        wanted_D = alpha_T @ v_TGD[:, head // group].double()
        torch.testing.assert_close(result.out_HD[head].double(), wanted_D, atol=1e-5, rtol=1e-5)
        alphas.append(alpha_T)
    assert result.evidence is not None
    for kv_head in range(kv_heads):
        wanted_T = torch.stack(alphas[kv_head * group : (kv_head + 1) * group]).amax(dim=0)
        torch.testing.assert_close(
            result.evidence[kv_head].double(), wanted_T, atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("slots", [1, 7, 8, 100])
def test_any_number_of_threads_gives_the_same_attention(slots: int, threads: int) -> None:
    q_HD, k_TGD, v_TGD = torch.randn(9, 60), torch.randn(slots, 3, 60), torch.randn(slots, 3, 60)
    wanted = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.NONE)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.NONE)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.out_HD, wanted.out_HD, atol=1e-5, rtol=1e-5)


def test_scores_are_made_on_request_only_and_change_no_bit_of_the_output() -> None:
    q_HD, k_TGD, v_TGD = torch.randn(4, 16), torch.randn(50, 2, 16), torch.randn(50, 2, 16)
    plain = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.NONE)
    scored = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.SCORES)
    assert plain.evidence is None
    assert torch.equal(plain.out_HD, scored.out_HD)


def test_scores_of_a_narrow_dtype_are_float32_all_the_way() -> None:
    """Logits near 30 rounded to bfloat16 would be off by 10 % in probability."""
    q_HD, k_TGD = 8 * torch.randn(4, 16).bfloat16(), 2 * torch.randn(200, 2, 16).bfloat16()
    v_TGD = torch.randn(200, 2, 16).bfloat16()
    result = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.SCORES)
    wide = TorchDecodeAttention().attend(
        q_HD.float(), k_TGD.float(), v_TGD.float(), evidence=Evidence.SCORES
    )
    assert result.out_HD.dtype is torch.bfloat16
    assert result.evidence is not None
    assert wide.evidence is not None
    torch.testing.assert_close(result.evidence, wide.evidence, atol=1e-6, rtol=1e-5)


def test_one_backend_serves_rows_of_any_dtype_and_shape() -> None:
    backend = TorchDecodeAttention()
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16, torch.float64):
        for heads, kv_heads in ((4, 2), (6, 2)):
            q_HD, k_TGD, v_TGD = (
                torch.randn(*shape, dtype=dtype)
                for shape in ((heads, 16), (50, kv_heads, 16), (50, kv_heads, 16))
            )
            got = backend.attend(q_HD, k_TGD, v_TGD, evidence=Evidence.NONE)
            fresh = TorchDecodeAttention().attend(q_HD, k_TGD, v_TGD, evidence=Evidence.NONE)
            assert got.out_HD.dtype is dtype
            assert torch.equal(got.out_HD, fresh.out_HD)
