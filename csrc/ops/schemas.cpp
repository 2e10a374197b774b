// Every op's schema, on one screen. Implementations: csrc/ops/<op>.cpp; meaning: eagle3_ext/reference/ops.py.
#include <torch/library.h>

#include "launch.h"

namespace {

void define(torch::Library& m) {
  m.def("capture_(Tensor(a!) features, int slot, Tensor hidden, Tensor? residual=None) -> ()");
  m.def("add_rms_norm_(Tensor(a!) hidden, Tensor(b!) residual, Tensor weight, float eps) -> ()");
  m.def("add_rms_norm_capture_(Tensor(a!) hidden, Tensor(b!) residual, Tensor weight, float eps, "
        "Tensor(c!) features, int slot) -> ()");
  m.def("gather_concat(Tensor[] states, Tensor rows, Tensor[]? norm_weights=None, float eps=1e-6, "
        "bool? check=None) -> Tensor");
  m.def("gather_concat.out(Tensor[] states, Tensor rows, Tensor[]? norm_weights=None, float eps=1e-6, "
        "bool? check=None, *, Tensor(a!) out) -> ()");
  m.def("accepted_rows(Tensor accept_lengths, int width, bool block_front=False) -> (Tensor rows, Tensor row_offsets)");
  m.def("draft_input(Tensor tokens, Tensor hidden, Tensor? embed_weight, Tensor embed_norm, Tensor? hidden_norm, "
        "float eps, Tensor? token_embeddings=None) -> Tensor");
  m.def("head_rms_norm_(Tensor(a!) qkv, Tensor q_weight, Tensor k_weight, float eps, int num_q_heads, "
        "int num_kv_heads) -> ()");
  m.def("rope_append_(Tensor(a!) qkv, Tensor positions, Tensor slots, Tensor cos_sin, int num_q_heads, "
        "int num_kv_heads, Tensor(b!) k_cache, Tensor(c!) v_cache) -> ()");
  m.def("mla_append_(Tensor(a!) q_pe, Tensor kv, Tensor kv_weight, float eps, Tensor positions, Tensor slots, "
        "Tensor cos_sin, Tensor(b!) cache) -> ()");
  m.def("draft_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor row_offsets, Tensor cache_starts, "
        "Tensor cache_lengths, float scale, int? window=None) -> Tensor");
  m.def("silu_mul(Tensor gate_up) -> Tensor");
  m.def("skinny_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("argmax_tokens(Tensor logits, Tensor? target_ids=None, bool with_log_probs=False) -> "
        "(Tensor tokens, Tensor valid, Tensor log_probs)");
  m.def("verify_greedy(Tensor draft_tokens, Tensor target_tokens) -> (Tensor accept_lengths, Tensor next_tokens)");
}

const torch::detail::TorchLibraryInit definition(torch::Library::DEF, define, eagle3::kNamespace, std::nullopt,
                                                 __FILE__, __LINE__);

}  // namespace
