#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

void capture_(const at::Tensor& features_, int64_t slot, const at::Tensor& hidden_,
              const std::optional<at::Tensor>& residual_) {
  Arg hidden("capture_", "hidden", hidden_), features("capture_", "features", features_);
  hidden.shape({-1, -1}, "[rows, H]").readable_rows();
  features.shape({hidden.size(0), -1}, "[rows, K*H]").same_dtype_and_device(hidden).writable_rows().apart_from(hidden);
  check_slot(features, slot, hidden.size(1));
  CaptureParams params{
      .dtype = hidden.dtype(),
      .features = features.mutable_data(),
      .hidden = hidden.data(),
      .rows = hidden.size(0),
      .hidden_size = hidden.size(1),
      .slot = slot,
      .features_stride = features.row_stride(),
      .hidden_stride = hidden.row_stride(),
  };
  Arg residual("capture_", "residual", residual_.value_or(hidden_));
  if (residual_) {
    residual.shape(hidden_.sizes(), "[rows, H]").same_dtype_and_device(hidden).readable_rows();
    features.apart_from(residual);
    params.residual = residual.data();
    params.residual_stride = residual.row_stride();
  }
  launch<cpu::capture, cuda::capture>("capture_", hidden_, params);
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("capture_", eagle3::capture_); }
