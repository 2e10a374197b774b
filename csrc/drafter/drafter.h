// The native drafter: extend over rows the target has verified, then draft. The two doors of the contract: features
// enter through extend() only, and the recurrent hidden of the draft steps never leaves.
//
// One source for CPU and GPU. Lengths, rows and positions are tensors on the drafter's device, and run_draft() reads none on
// the host, so that a CUDA graph can replay it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "cache.h"
#include "forward.h"
#include "sizes.h"
#include "weights.h"

namespace eagle3 {

struct DraftTokens {
  at::Tensor tokens;     // int64 [B, D] target ids; -1 where nothing was drafted
  at::Tensor lengths;    // int64 [B], drafted tokens of each sequence
  at::Tensor log_probs;  // fp32 [B, D]
};

// What extend() is given; the fields are those of eagle3_ext/drafter.py's Drafter.extend.
struct ExtendInput {
  at::Tensor features, tokens, positions, row_offsets;
  std::optional<at::Tensor> sequences, token_embeddings;
};

// Not safe for two threads at once. Every check comes before the first write, so that a refused call changes nothing.
class Drafter {
 public:
  Drafter(const DrafterSizes& sizes, const WeightsByName& weights, int64_t max_batch, int64_t max_length);

  // Appends the rows at the committed lengths and advances them. ValueError for shapes, dtypes and devices. Values are
  // checked where the host may read them (ValueError, IndexError); elsewhere bad ones write nothing outside their
  // sequence, and one that would outgrow max_length stays as it was, with nothing to draft from.
  void extend(const ExtendInput& input);
  // Drafting is two calls, because a CUDA graph that replays the second still needs the first. claim_draft: ValueError
  // twice in a row, before any extend, or past max_length. run_draft: drafts for the sequences of the last extend(), in
  // its order, into buffers that the next draft reuses; nothing but tensors decides what it computes.
  void claim_draft(int64_t num_tokens);
  DraftTokens run_draft(int64_t num_tokens);

  void reset(const std::optional<std::vector<int64_t>>& sequences);
  void truncate(int64_t sequence, int64_t length);
  int64_t batch() const { return batch_; }             // B of the last extend
  at::Tensor lengths() const { return lengths_.clone(); }  // int64 [max_batch]

  // For tests: s, y and logits of the last step, one row per sequence of the last extend.
  at::Tensor last_s() const { return last_s_; }
  at::Tensor last_y() const { return last_y_; }
  at::Tensor last_logits() const { return last_logits_; }

 private:
  // The rows of one forward, written by kernels.
  struct RowBuffers {
    at::Tensor tokens, positions, slots, row_offsets, cache_starts, cache_lengths, last_rows;
  };

  void check_shapes(const ExtendInput& input) const;
  int64_t check_values(const ExtendInput& input) const;
  void extend_chunk(const ExtendInput& input, int64_t first, int64_t count);
  DraftTokens draft_buffers(int64_t num_tokens);
  void take_draft_tokens(const DraftTokens& draft, int64_t step);
  void check_sequence(int64_t sequence) const;
  void forget(int64_t sequence);  // nothing to draft from: its last row is gone
  DrafterState state() const;
  std::vector<int64_t> host_lengths() const;
  // Room for `rows` more of any sequence. A cache grows only where the host knows the lengths; elsewhere it is full-sized.
  void reserve(int64_t rows);

  DrafterSizes sizes_;
  int64_t max_batch_, max_length_;
  Forward forward_;
  KvCache cache_;
  at::Tensor lengths_, extended_, positions_;  // the arrays of DrafterState
  at::Tensor kept_s_, kept_y_;                 // [max_batch, h]: the last row of each sequence of the last extend
  RowBuffers rows_;
  at::Tensor no_tokens_, one_row_each_;  // int64 zeros [max_rows]; int64 0, 1 .. [max_batch + 1]
  at::Tensor chosen_, valid_, chosen_log_probs_, argmax_workspace_;
  at::Tensor draft_tokens_, draft_log_probs_, draft_lengths_;  // [max_batch * D] of the longest draft yet, [max_batch]
  int64_t batch_ = 0;
  bool ready_ = false;  // an extend() happened since the last claim_draft()
  at::Tensor last_s_, last_y_, last_logits_;
};

}  // namespace eagle3
