// Argument checks of the op glue. A message reads "<op>: <tensor> has <what it has>, expected <what it should>".
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <string>

#include "../core/indices.h"
#include "../kernels.h"

namespace eagle3 {

// A tensor argument under its name in the schema, with its index if it is one of a list. Checks throw ValueError and
// return the argument, so that they chain. Read-only arguments may be replaced by a contiguous copy, which the Arg
// keeps alive; mutated ones never are.
class Arg {
 public:
  Arg(const char* op, const char* name, const at::Tensor& tensor, int64_t index = -1)
      : op_(op), name_(name), index_(index), tensor_(tensor) {}

  // Sizes must be these; -1 accepts any. `meaning` names them for the message: "[rows, H]".
  Arg& shape(at::IntArrayRef expected, const char* meaning);
  Arg& same_device(const Arg& other);
  Arg& same_dtype_and_device(const Arg& other);
  Arg& of_type(at::ScalarType expected);

  // A mutated argument of [rows, ...]: every row contiguous and no two rows share memory.
  Arg& writable_rows();
  Arg& writable_contiguous();
  // A mutated argument of [rows, heads, d]: every head contiguous and no two share memory.
  Arg& writable_heads();
  // Two arguments of [rows, ...], one of them written: they share no memory. Rows of one stride may interleave, as the
  // slots of a features buffer do.
  Arg& apart_from(const Arg& other);
  // A read-only argument of [rows, ...]: rows keep their stride, copied only when a row itself is not contiguous.
  Arg& readable_rows();
  Arg& readable_contiguous();
  // A read-only argument of [rows, heads, d]: rows and heads keep their strides.
  Arg& readable_heads();

  // float32, bfloat16 or float16.
  DType dtype() const;
  // int32 or int64, made contiguous if need be.
  Indices indices();

  int64_t size(int64_t dim) const { return tensor_.size(dim); }
  int64_t row_stride() const { return tensor_.stride(0); }
  const void* data() const { return tensor_.const_data_ptr(); }
  void* mutable_data() const { return tensor_.mutable_data_ptr(); }
  const at::Tensor& tensor() const { return tensor_; }
  const char* op() const { return op_; }
  std::string label() const;  // "hidden" or "states[1]"

 private:
  const char* op_;
  const char* name_;
  int64_t index_;
  at::Tensor tensor_;
};

// IndexError unless every value is -1 (padding) or in [0, limit). Reads the values: those on a GPU are copied, which
// waits for its stream, so callers ask can_read_values() first unless their caller asked for the check.
void check_padded_indices(const Arg& arg, int64_t limit);

// check_padded_indices of slots, and IndexError unless the position of every row with a slot is in [0, max_position).
// Padding may lie at any position.
void check_positions(Arg& positions, Arg& slots, int64_t max_position, int64_t num_slots);

// ValueError for a negative count, or for more heads than a row of qkv [n, width] has elements: the width of so many would
// overflow.
void check_head_counts(const Arg& qkv, int64_t num_q_heads, int64_t num_kv_heads);

// The eps of an RMS norm as the kernels take it. ValueError for a negative or NaN one, which would turn rows into NaN.
float checked_eps(const char* op, double eps);

// IndexError unless slot is one of the whole hidden_size-wide slots of a features row.
void check_slot(const Arg& features, int64_t slot, int64_t hidden_size);

}  // namespace eagle3
