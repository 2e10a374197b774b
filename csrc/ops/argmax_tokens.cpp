#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> argmax_tokens(const at::Tensor& logits_,
                                                             const std::optional<at::Tensor>& target_ids_,
                                                             bool with_log_probs) {
  Arg logits("argmax_tokens", "logits", logits_);
  logits.shape({-1, -1}, "[n, Vd]").readable_rows();
  const int64_t n = logits.size(0), vocab_size = logits.size(1);
  TORCH_CHECK_VALUE(vocab_size > 0, "argmax_tokens: logits has shape ", logits_.sizes(), ", expected Vd of at least 1");
  ArgmaxTokensParams params{
      .dtype = logits.dtype(),
      .logits = logits.data(),
      .num_rows = n,
      .vocab_size = vocab_size,
      .logits_stride = logits.row_stride(),
  };
  Arg target_ids("argmax_tokens", "target_ids", target_ids_.value_or(logits_));
  if (target_ids_) {
    target_ids.shape({vocab_size}, "[Vd]").of_type(at::kLong).same_device(logits).readable_contiguous();
    params.target_ids = static_cast<const int64_t*>(target_ids.data());
  }
  at::Tensor tokens = at::empty({n}, logits_.options().dtype(at::kLong));
  at::Tensor valid = at::empty({n}, logits_.options().dtype(at::kBool));
  at::Tensor log_probs = at::empty({with_log_probs ? n : 0}, logits_.options().dtype(at::kFloat));
  params.tokens = tokens.mutable_data_ptr<int64_t>();
  params.valid = valid.mutable_data_ptr<bool>();
  params.log_probs = with_log_probs ? log_probs.mutable_data_ptr<float>() : nullptr;
  const at::Tensor memory = workspace<cuda::argmax_tokens_workspace>(logits_, n, vocab_size);
  params.workspace = address_or_null(memory);
  launch<cpu::argmax_tokens, cuda::argmax_tokens>("argmax_tokens", logits_, params);
  return {tokens, valid, log_probs};
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("argmax_tokens", eagle3::argmax_tokens); }
