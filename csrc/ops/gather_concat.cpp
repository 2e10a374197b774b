#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

constexpr const char* kGatherOp = "gather_concat";

std::vector<Arg> checked_states(at::TensorList states) {
  const int64_t count = static_cast<int64_t>(states.size());
  TORCH_CHECK_VALUE(count >= 1 && count <= kMaxStates, kGatherOp, ": states has ", count, " tensors, expected 1 to ",
                    kMaxStates);
  std::vector<Arg> args;
  args.reserve(count);
  for (const at::Tensor& state : states) {
    args.emplace_back(kGatherOp, "states", state, args.size());
    args.back().shape(args.size() == 1 ? at::IntArrayRef{-1, -1} : states[0].sizes(), "[n, H], the same for all");
    args.back().same_dtype_and_device(args[0]).readable_rows();
  }
  return args;
}

// Fills states and norm weights. A packed tensor under K weights becomes K states of a K-th of its width.
void set_states(const std::vector<Arg>& states, std::vector<Arg>& norms, GatherConcatParams& params) {
  const int64_t given = static_cast<int64_t>(states.size()), num_norms = static_cast<int64_t>(norms.size());
  const int64_t width = given * states[0].size(1);
  TORCH_CHECK_VALUE(num_norms <= 1 || num_norms == given || (given == 1 && num_norms <= kMaxStates), kGatherOp,
                    ": norm_weights has ", num_norms, " tensors, expected 0, 1 or one for each of ", given, " states");
  TORCH_CHECK_VALUE(num_norms <= 1 || width % num_norms == 0, kGatherOp, ": states have width ", width,
                    ", expected a multiple of ", num_norms, ", the number of norm_weights");
  params.num_states = given == 1 && num_norms > 1 ? num_norms : given;
  params.hidden_size = width / params.num_states;
  const int64_t step_bytes = params.hidden_size * states[0].tensor().element_size();
  for (int64_t j = 0; j < params.num_states; ++j) {
    const Arg& source = states[given == 1 ? 0 : j];
    params.states[j] = static_cast<const char*>(source.data()) + (given == 1 ? j * step_bytes : 0);
    params.state_strides[j] = source.row_stride();
  }
  params.num_norm_weights = num_norms;
  for (int64_t j = 0; j < num_norms; ++j) {
    norms[j].shape({num_norms == 1 ? width : params.hidden_size}, num_norms == 1 ? "[K*H]" : "[H]");
    params.norm_weights[j] = norms[j].same_dtype_and_device(states[0]).readable_contiguous().data();
  }
}

// An absent list of norm weights is an empty one; a schema cannot say `Tensor[] norm_weights=[]`.
using NormWeights = std::optional<at::TensorList>;

at::Tensor gather(at::TensorList states_, const at::Tensor& rows_, NormWeights norm_weights, double eps,
                  std::optional<bool> check, const std::optional<at::Tensor>& given_out) {
  std::vector<Arg> states = checked_states(states_), norms;
  for (const at::Tensor& weight : norm_weights.value_or(at::TensorList()))
    norms.emplace_back(kGatherOp, "norm_weights", weight, norms.size());
  GatherConcatParams params{.dtype = states[0].dtype()};
  set_states(states, norms, params);
  params.num_source_rows = states[0].size(0);
  params.eps = checked_eps(kGatherOp, eps);

  Arg rows(kGatherOp, "rows", rows_);
  params.rows = rows.shape({-1}, "[m]").same_device(states[0]).indices();
  params.num_rows = rows.size(0);
  if (check.value_or(can_read_values(rows_))) check_padded_indices(rows, params.num_source_rows);

  const int64_t width = params.num_states * params.hidden_size;
  Arg out(kGatherOp, "out", given_out ? *given_out : at::empty({params.num_rows, width}, states_[0].options()));
  out.shape({params.num_rows, width}, "[m, K*H]").same_dtype_and_device(states[0]).writable_rows();
  if (given_out) {
    for (const Arg& state : states) out.apart_from(state);
    for (const Arg& norm : norms) out.apart_from(norm);
  }
  params.out = out.mutable_data();
  params.out_stride = out.row_stride();
  launch<cpu::gather_concat, cuda::gather_concat>(kGatherOp, out.tensor(), params);
  return out.tensor();
}

at::Tensor gather_concat(at::TensorList states, const at::Tensor& rows, NormWeights norm_weights, double eps,
                         std::optional<bool> check) {
  return gather(states, rows, norm_weights, eps, check, std::nullopt);
}

void gather_concat_out(at::TensorList states, const at::Tensor& rows, NormWeights norm_weights, double eps,
                       std::optional<bool> check, const at::Tensor& out) {
  gather(states, rows, norm_weights, eps, check, out);
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) {
  m.impl("gather_concat", eagle3::gather_concat);
  m.impl("gather_concat.out", eagle3::gather_concat_out);
}
