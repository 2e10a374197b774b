#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

AddRmsNormParams checked(const char* op, const at::Tensor& hidden_, const at::Tensor& residual_, Arg& weight,
                         double eps) {
  Arg hidden(op, "hidden", hidden_), residual(op, "residual", residual_);
  hidden.shape({-1, -1}, "[rows, H]").writable_rows();
  residual.shape(hidden_.sizes(), "[rows, H]").same_dtype_and_device(hidden).writable_rows();
  weight.shape({hidden.size(1)}, "[H]").same_dtype_and_device(hidden).readable_contiguous();
  residual.apart_from(hidden);
  hidden.apart_from(weight);
  residual.apart_from(weight);
  return {
      .dtype = hidden.dtype(),
      .hidden = hidden.mutable_data(),
      .residual = residual.mutable_data(),
      .weight = weight.data(),
      .rows = hidden.size(0),
      .hidden_size = hidden.size(1),
      .hidden_stride = hidden.row_stride(),
      .residual_stride = residual.row_stride(),
      .eps = checked_eps(op, eps),
  };
}

void add_rms_norm_(const at::Tensor& hidden, const at::Tensor& residual, const at::Tensor& weight_, double eps) {
  constexpr const char* kOp = "add_rms_norm_";
  Arg weight(kOp, "weight", weight_);
  const AddRmsNormParams params = checked(kOp, hidden, residual, weight, eps);
  launch<cpu::add_rms_norm, cuda::add_rms_norm>(kOp, hidden, params);
}

void add_rms_norm_capture_(const at::Tensor& hidden, const at::Tensor& residual, const at::Tensor& weight_, double eps,
                           const at::Tensor& features_, int64_t slot) {
  constexpr const char* kOp = "add_rms_norm_capture_";
  Arg weight(kOp, "weight", weight_), features(kOp, "features", features_);
  AddRmsNormParams params = checked(kOp, hidden, residual, weight, eps);
  features.shape({params.rows, -1}, "[rows, K*H]").same_dtype_and_device(weight).writable_rows();
  features.apart_from(Arg(kOp, "hidden", hidden)).apart_from(Arg(kOp, "residual", residual)).apart_from(weight);
  check_slot(features, slot, params.hidden_size);
  params.features = features.mutable_data();
  params.features_stride = features.row_stride();
  params.slot = slot;
  launch<cpu::add_rms_norm, cuda::add_rms_norm>(kOp, hidden, params);
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) {
  m.impl("add_rms_norm_", eagle3::add_rms_norm_);
  m.impl("add_rms_norm_capture_", eagle3::add_rms_norm_capture_);
}
