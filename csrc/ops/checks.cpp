#include "checks.h"

#include <sstream>
#include <utility>

namespace eagle3 {
namespace {

// "[rows, H] = [*, 256]"; the names alone when every size is free.
std::string expectation(at::IntArrayRef sizes, const char* meaning) {
  std::ostringstream text, numbers;
  bool any_fixed = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    numbers << (i ? ", " : "");
    sizes[i] == -1 ? numbers << '*' : numbers << sizes[i];
    any_fixed |= sizes[i] != -1;
  }
  text << meaning;
  if (any_fixed) text << " = [" << numbers.str() << "]";
  return text.str();
}

// Dimensions 1 and up are laid out without gaps.
bool rows_are_contiguous(const at::Tensor& t) {
  int64_t stride = 1;
  for (int64_t dim = t.dim() - 1; dim > 0; --dim) {
    if (t.size(dim) != 1 && t.stride(dim) != stride) return false;
    stride *= t.size(dim);
  }
  return true;
}

}  // namespace

std::string Arg::label() const { return index_ < 0 ? name_ : name_ + ("[" + std::to_string(index_) + "]"); }

Arg& Arg::shape(at::IntArrayRef expected, const char* meaning) {
  bool same = tensor_.dim() == static_cast<int64_t>(expected.size());
  for (int64_t i = 0; same && i < tensor_.dim(); ++i) same = expected[i] == -1 || expected[i] == tensor_.size(i);
  TORCH_CHECK_VALUE(same, op_, ": ", label(), " has shape ", tensor_.sizes(), ", expected ",
                    expectation(expected, meaning));
  return *this;
}

Arg& Arg::same_device(const Arg& other) {
  TORCH_CHECK_VALUE(tensor_.device() == other.tensor_.device(), op_, ": ", label(), " is on ", tensor_.device(),
                    ", expected ", other.tensor_.device(), ", where ", other.label(), " is");
  return *this;
}

Arg& Arg::same_dtype_and_device(const Arg& other) {
  TORCH_CHECK_VALUE(tensor_.scalar_type() == other.tensor_.scalar_type(), op_, ": ", label(), " has dtype ",
                    tensor_.scalar_type(), ", expected ", other.tensor_.scalar_type(), " as ", other.label());
  return same_device(other);
}

Arg& Arg::of_type(at::ScalarType expected) {
  TORCH_CHECK_VALUE(tensor_.scalar_type() == expected, op_, ": ", label(), " has dtype ", tensor_.scalar_type(),
                    ", expected ", expected);
  return *this;
}

Arg& Arg::writable_rows() {
  const int64_t row = tensor_.size(0) > 0 ? tensor_.numel() / tensor_.size(0) : 0;
  const bool overlap = tensor_.size(0) > 1 && tensor_.stride(0) < row;
  TORCH_CHECK_VALUE(rows_are_contiguous(tensor_) && !overlap, op_, ": ", label(), " has strides ", tensor_.strides(),
                    ", expected contiguous rows that do not overlap: it is written in place");
  return *this;
}

Arg& Arg::writable_contiguous() {
  TORCH_CHECK_VALUE(tensor_.is_contiguous(), op_, ": ", label(), " has strides ", tensor_.strides(), " at shape ",
                    tensor_.sizes(), ", expected a contiguous tensor: it is written in place");
  return *this;
}

Arg& Arg::writable_heads() {
  // The inner of the two dimensions, whichever it is, must step over a head, the outer over all of the inner one.
  int64_t inner = 1, outer = 0;
  if (tensor_.size(1) <= 1 || (tensor_.size(0) > 1 && tensor_.stride(0) < tensor_.stride(1))) std::swap(inner, outer);
  const int64_t head = tensor_.size(2), span = (tensor_.size(inner) - 1) * tensor_.stride(inner) + head;
  const bool apart = (tensor_.size(inner) <= 1 || tensor_.stride(inner) >= head) &&
                     (tensor_.size(outer) <= 1 || tensor_.stride(outer) >= span);
  TORCH_CHECK_VALUE(tensor_.numel() == 0 || ((head == 1 || tensor_.stride(2) == 1) && apart), op_, ": ", label(),
                    " has strides ", tensor_.strides(),
                    ", expected contiguous heads that do not overlap: it is written in place");
  return *this;
}

Arg& Arg::apart_from(const Arg& other) {
  const auto address = [](const Arg& arg) { return reinterpret_cast<int64_t>(arg.data()); };
  const auto bytes = [](const Arg& arg, int64_t elements) {
    return elements * static_cast<int64_t>(arg.tensor().itemsize());
  };
  // From one row to the next, of one row, and of all: rows lie at address + i * step.
  const auto step = [&](const Arg& arg) { return arg.size(0) > 1 ? bytes(arg, arg.row_stride()) : 0; };
  const auto row = [&](const Arg& arg) {
    int64_t last = 0;  // element of the row; heads may have gaps between them
    for (int64_t dim = 1; dim < arg.tensor().dim(); ++dim) last += (arg.size(dim) - 1) * arg.tensor().stride(dim);
    return bytes(arg, last + 1);
  };
  const auto span = [&](const Arg& arg) { return (arg.size(0) - 1) * step(arg) + row(arg); };
  if (tensor_.numel() == 0 || other.tensor_.numel() == 0) return *this;
  const int64_t after = address(other) - address(*this);  // of other's first byte behind this one's
  bool apart = after >= span(*this) || -after >= span(other);
  if (const int64_t stride = step(*this); !apart && stride > 0 && stride == step(other)) {
    const int64_t behind = (after % stride + stride) % stride;
    apart = behind >= row(*this) && behind + row(other) <= stride;
  }
  TORCH_CHECK_VALUE(apart, op_, ": ", label(), " and ", other.label(), " share memory, expected two tensors: ", label(),
                    " is written");
  return *this;
}

Arg& Arg::readable_rows() {
  if (!rows_are_contiguous(tensor_)) tensor_ = tensor_.contiguous();
  return *this;
}

Arg& Arg::readable_contiguous() {
  tensor_ = tensor_.contiguous();
  return *this;
}

Arg& Arg::readable_heads() {
  if (tensor_.size(2) > 1 && tensor_.stride(2) != 1) tensor_ = tensor_.contiguous();
  return *this;
}

DType Arg::dtype() const {
  switch (tensor_.scalar_type()) {
    case at::kFloat: return DType::kFloat32;
    case at::kBFloat16: return DType::kBFloat16;
    case at::kHalf: return DType::kFloat16;
    default:
      TORCH_CHECK_VALUE(false, op_, ": ", label(), " has dtype ", tensor_.scalar_type(),
                        ", expected float32, bfloat16 or float16");
  }
}

Indices Arg::indices() {
  const at::ScalarType type = tensor_.scalar_type();
  TORCH_CHECK_VALUE(type == at::kInt || type == at::kLong, op_, ": ", label(), " has dtype ", type,
                    ", expected int32 or int64");
  readable_contiguous();
  return {.data = data(), .is_int32 = type == at::kInt};
}

void check_padded_indices(const Arg& arg, int64_t limit) {
  const at::Tensor values = arg.tensor().is_cpu() ? arg.tensor() : arg.tensor().cpu();
  Arg readable(arg.op(), "values", values);
  const Indices indices = readable.indices();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const int64_t value = index_at(indices, i);
    TORCH_CHECK_INDEX(value >= -1 && value < limit, arg.op(), ": ", arg.label(), "[", i, "] is ", value,
                      ", expected -1 (padding) or an index in [0, ", limit, ")");
  }
}

void check_positions(Arg& positions, Arg& slots, int64_t max_position, int64_t num_slots) {
  const Indices position_values = positions.indices(), slot_values = slots.indices();
  check_padded_indices(slots, num_slots);
  for (int64_t i = 0; i < slots.size(0); ++i) {
    const int64_t position = index_at(position_values, i);
    const bool padding = index_at(slot_values, i) == -1;
    TORCH_CHECK_INDEX(padding || (position >= 0 && position < max_position), positions.op(), ": ", positions.label(),
                      "[", i, "] is ", position, ", expected [0, max_position = ", max_position, ")");
  }
}

void check_head_counts(const Arg& qkv, int64_t num_q_heads, int64_t num_kv_heads) {
  const int64_t most = qkv.size(1);
  for (const auto& [name, count] : {std::pair("num_q_heads", num_q_heads), std::pair("num_kv_heads", num_kv_heads)})
    TORCH_CHECK_VALUE(count >= 0 && count <= most, qkv.op(), ": ", name, " is ", count, ", expected 0 to ", most,
                      ", the width of ", qkv.label());
}

float checked_eps(const char* op, double eps) {
  TORCH_CHECK_VALUE(eps >= 0.0, op, ": eps is ", eps, ", expected 0 or more");
  return static_cast<float>(eps);
}

void check_slot(const Arg& features, int64_t slot, int64_t hidden_size) {
  const int64_t slots = hidden_size > 0 ? features.size(1) / hidden_size : 0;
  TORCH_CHECK_INDEX(slot >= 0 && slot < slots, features.op(), ": slot is ", slot, ", expected [0, ", slots,
                    "): features of width ", features.size(1), " hold ", slots, " states of ", hidden_size);
}

}  // namespace eagle3
