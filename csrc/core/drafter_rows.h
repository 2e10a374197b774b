// Where the drafter's rows lie in its cache and what a draft keeps, shared by the CPU and CUDA kernels.
//
// On a GPU nobody reads an index before it is followed, so whatever the numbers are: a slot lies in its own sequence's
// part of the cache or is -1, and nothing is committed past the capacity.
#pragma once

#include "indices.h"

namespace eagle3 {

// Sequence b of an extend, -1 for one that the drafter does not have.
EAGLE3_HOST_DEVICE int64_t sequence_at(const Indices& sequences, int64_t b, int64_t max_batch) {
  const int64_t sequence = sequences.data ? index_at(sequences, b) : b;
  return sequence >= 0 && sequence < max_batch ? sequence : -1;
}

EAGLE3_HOST_DEVICE int64_t slot_of(const DrafterState& state, int64_t sequence, int64_t place) {
  return sequence >= 0 && place >= 0 && place < state.capacity ? sequence * state.capacity + place : -1;
}

// The b whose row_offsets[b] .. row_offsets[b+1] holds `row`, -1 for padding.
EAGLE3_HOST_DEVICE int64_t owner_of_row(const Indices& row_offsets, int64_t batch, int64_t row) {
  int64_t low = 0, high = batch;  // the first b with row_offsets[b+1] > row
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (index_at(row_offsets, middle + 1) > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low < batch && index_at(row_offsets, low) <= row ? low : -1;
}

EAGLE3_HOST_DEVICE int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Row i of the chunk.
EAGLE3_HOST_DEVICE void place_row(const ExtendRowsParams& p, int64_t i) {
  const int64_t row = p.first_row + i, b = owner_of_row(p.row_offsets, p.batch, row);
  const int64_t sequence = b < 0 ? -1 : sequence_at(p.sequences, b, p.state.max_batch);
  p.slots[i] = sequence < 0 ? -1 : slot_of(p.state, sequence, p.state.lengths[sequence] + row - index_at(p.row_offsets, b));
}

// Sequence b of the extend, as far as this chunk goes; b == batch closes chunk_offsets.
EAGLE3_HOST_DEVICE void place_sequence(const ExtendRowsParams& p, int64_t b) {
  const int64_t begin = index_at(p.row_offsets, b), chunk_end = p.first_row + p.num_rows;
  p.chunk_offsets[b] = clamped(begin - p.first_row, 0, p.num_rows);
  if (b == p.batch) return;
  const int64_t end = index_at(p.row_offsets, b + 1), sequence = sequence_at(p.sequences, b, p.state.max_batch);
  const int64_t extended_here = clamped(chunk_end < end ? chunk_end - begin : end - begin, 0, p.state.capacity);
  // Offsets that no one checked may claim rows that never come, or more than there is room for: only a sequence that has
  // got all of its rows is committed and drafted for.
  const bool ends_here = sequence >= 0 && begin >= 0 && end > begin && end > p.first_row && end <= chunk_end &&
                         end - begin <= p.state.capacity - p.state.lengths[sequence];
  p.cache_starts[b] = sequence < 0 ? 0 : sequence * p.state.capacity;
  p.cache_lengths[b] = sequence < 0 ? 0 : clamped(p.state.lengths[sequence] + extended_here, 0, p.state.capacity);
  p.last_rows[b] = ends_here ? end - 1 - p.first_row : -1;
  if (ends_here) {
    p.state.extended[b] = sequence;
  } else if (p.first_row == 0) {
    p.state.extended[b] = -1;
  }
}

// The rows of sequence b, which has just been extended to its end, become committed.
EAGLE3_HOST_DEVICE void commit_rows(const KeepRowsParams& p, int64_t b) {
  int64_t& length = p.state.lengths[p.state.extended[b]];
  const int64_t rows = index_at(p.row_offsets, b + 1) - index_at(p.row_offsets, b);
  length = clamped(length + rows, 0, p.state.capacity);
  p.state.positions[b] = index_at(p.positions, p.last_rows[b]);
}

// Draft token `step` of sequence b, and its row in the next step. Logits without a winner end a draft, because what
// follows would be drafted from NaN, and so do a full cache, because a row without a slot attends to nothing, and the last
// position of the RoPE table. A draft that has ended, or never began, is fed padding.
EAGLE3_HOST_DEVICE void take_draft_token(const DraftRowsParams& p, int64_t b) {
  const int64_t sequence = p.state.extended[b], at = b * p.num_tokens + p.step;
  const bool began = sequence >= 0 && (p.step == 0 || p.draft_tokens[at - 1] >= 0);
  const int64_t place = began ? p.state.lengths[sequence] + p.step : -1;
  const bool has_row = place <= p.state.capacity && p.state.positions[b] + p.step < p.state.max_position;
  const bool drafts = began && p.valid[b] && has_row;
  p.draft_tokens[at] = drafts ? p.chosen[b] : -1;
  p.log_probs[at] = drafts ? p.chosen_log_probs[b] : 0.0f;
  p.draft_lengths[b] = (p.step == 0 ? 0 : p.draft_lengths[b]) + (drafts ? 1 : 0);
  p.tokens[b] = p.draft_tokens[at];
  p.positions[b] = p.state.positions[b] + p.step + 1;
  p.slots[b] = slot_of(p.state, drafts ? sequence : -1, place);
  p.cache_starts[b] = drafts ? sequence * p.state.capacity : 0;
  p.cache_lengths[b] = p.slots[b] < 0 ? 0 : place + 1;
}

}  // namespace eagle3
