// The native drafter: extend over rows the target has verified, then draft. The two doors of the contract: features
// enter through extend() only, and the recurrent hidden of the draft steps never leaves.
#pragma once

#include <ATen/ATen.h>

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

// One sequence's share of an extend() call: rows first_row .. first_row + num_rows of the caller's tensors.
struct Segment {
  int64_t sequence, first_row, num_rows;
};

// Not safe for two threads at once. Every check comes before the first write, so that a refused call changes nothing.
class Drafter {
 public:
  Drafter(const DrafterSizes& sizes, const WeightsByName& weights, int64_t max_batch, int64_t max_length);

  // Appends the rows at the committed lengths and advances them. ValueError, IndexError for rows out of range.
  void extend(const ExtendInput& input);
  // Drafts for the sequences of the last extend(), in its order. ValueError twice in a row or before any extend.
  DraftTokens draft(int64_t num_tokens);

  void reset(const std::optional<std::vector<int64_t>>& sequences);
  void truncate(int64_t sequence, int64_t length);
  at::Tensor lengths() const;  // int64 [max_batch]

  // For tests and traces: s, y and logits of the last step, one row per drafted sequence.
  at::Tensor last_s() const { return last_s_; }
  at::Tensor last_y() const { return last_y_; }
  at::Tensor last_logits() const { return last_logits_; }

 private:
  std::vector<Segment> checked(const ExtendInput& input) const;
  void check_values(const ExtendInput& input, const std::vector<Segment>& segments) const;
  void extend_chunk(const ExtendInput& input, const std::vector<Segment>& chunk);
  void check_draft(int64_t num_tokens) const;
  void step(const std::vector<int64_t>& sequences, const std::vector<int64_t>& tokens, int64_t ahead);
  void check_sequence(int64_t sequence) const;
  void forget(int64_t sequence);  // nothing to draft from: its last row is gone

  DrafterSizes sizes_;
  KvCache cache_;
  Forward forward_;
  at::Tensor kept_s_, kept_y_;          // [max_batch, h]: the last extended row of each sequence
  std::vector<int64_t> kept_position_;  // [max_batch]
  std::vector<int64_t> extended_;       // sequences of the last extend() in its order; -1 where it had no rows
  bool ready_ = false;                  // an extend() happened since the last draft()
  at::Tensor last_s_, last_y_, last_logits_;
};

}  // namespace eagle3
