#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

at::Tensor draft_input(const at::Tensor& tokens_, const at::Tensor& hidden_,
                       const std::optional<at::Tensor>& embed_weight_, const at::Tensor& embed_norm_,
                       const std::optional<at::Tensor>& hidden_norm_, double eps,
                       const std::optional<at::Tensor>& token_embeddings_) {
  constexpr const char* kOp = "draft_input";
  TORCH_CHECK_VALUE(embed_weight_ || token_embeddings_, kOp,
                    ": embed_weight and token_embeddings are both None, expected one of them");
  Arg hidden(kOp, "hidden", hidden_), tokens(kOp, "tokens", tokens_), embed_norm(kOp, "embed_norm", embed_norm_);
  const int64_t h = hidden.shape({-1, -1}, "[n, h]").readable_rows().size(1), n = hidden.size(0);
  // Absent tensors stand in as `hidden`: their checks then hold by themselves, and their pointers stay null below.
  Arg embed_weight(kOp, "embed_weight", embed_weight_.value_or(hidden_));
  Arg token_embeddings(kOp, "token_embeddings", token_embeddings_.value_or(hidden_));
  Arg hidden_norm(kOp, "hidden_norm", hidden_norm_.value_or(embed_norm_));
  tokens.shape({n}, "[n]").same_device(hidden);
  embed_norm.shape({h}, "[h]").same_dtype_and_device(hidden).readable_contiguous();
  hidden_norm.shape({h}, "[h]").same_dtype_and_device(hidden).readable_contiguous();
  embed_weight.shape({-1, h}, "[V, h]").same_dtype_and_device(hidden).readable_contiguous();
  token_embeddings.shape({n, h}, "[n, h]").same_dtype_and_device(hidden).readable_rows();

  const Indices token_values = tokens.indices();
  if (!token_embeddings_ && can_read_values(tokens_)) check_padded_indices(tokens, embed_weight.size(0));
  at::Tensor x = at::empty({n, 2 * h}, hidden_.options());
  const DraftInputParams params{
      .dtype = hidden.dtype(),
      .tokens = token_values,
      .hidden = hidden.data(),
      .embed_weight = embed_weight_ ? embed_weight.data() : nullptr,
      .token_embeddings = token_embeddings_ ? token_embeddings.data() : nullptr,
      .embed_norm = embed_norm.data(),
      .hidden_norm = hidden_norm_ ? hidden_norm.data() : nullptr,
      .eps = checked_eps(kOp, eps),
      .num_rows = n,
      .hidden_size = h,
      .vocab_size = embed_weight_ ? embed_weight.size(0) : 0,
      .hidden_stride = hidden.row_stride(),
      .token_embeddings_stride = token_embeddings.row_stride(),
      .x = x.mutable_data_ptr(),
  };
  launch<cpu::draft_input, cuda::draft_input>(kOp, hidden_, params);
  return x;
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("draft_input", eagle3::draft_input); }
