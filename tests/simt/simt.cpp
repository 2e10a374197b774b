// The scheduler: runs a launch block by block and a block turn by turn, until every thread is done or none can go on.
#include "simt.h"

#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "fiber.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace simt {

const Index* current = nullptr;

namespace {

// What the smallest of the supported cards, sm_80, has.
constexpr size_t kDefaultSharedBytes = 48 << 10, kMostSharedBytes = 163 << 10;
constexpr unsigned kMultiprocessors = 4;

enum class State { kReady, kAtBarrier, kInCollective, kDone };

struct Thread {
  Index index{};
  std::unique_ptr<Fiber> fiber;
  State state = State::kDone;
  Vote vote = Vote::kNone;
  Where where;  // of the barrier or collective it waits in
};

// Lanes on their way into one collective. Two sets of values, because a fast lane may enter the next collective before
// a slow one has read the results of this one.
struct Collective {
  uint32_t mask = 0, arrived = 0;
  int turn = 0;
  Where where;
  uint32_t complete_mask[2] = {};
  uint64_t values[2][32] = {};
};

struct Warp {
  uint32_t alive = 0;
  Collective by_first_lane[32];  // disjoint masks of one warp may be under way at once
};

struct Grid {
  Order order = Order::kForward;
  uint64_t seed = 0;
  std::mt19937_64 random;
  std::map<const void*, size_t> allowed_shared_bytes;
  cudaError_t last_error = cudaSuccess;
  int64_t launches = 0;

  std::vector<Thread> threads;  // grows and is kept: making a fiber costs more than running it
  size_t block_threads = 0;
  std::vector<Warp> warps;
  std::vector<uint32_t> turns;  // the order of the threads
  const std::function<void()>* body = nullptr;
  char* shared = nullptr;
  size_t shared_bytes = 0;

  Thread* running = nullptr;
  int votes_for = 0, vote_result = 0;
  std::string error;

  // For TSan. Each alternates, so that a fast thread's next release does not reach a slow one's last acquire.
  char block_start[2] = {}, block_end[2] = {}, barrier[2] = {};
  int block_turn = 0, barrier_turn = 0;
} grid;

std::string text(const uint3& i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

std::string describe(const Thread& thread) {
  return "thread " + text(thread.index.thread) + " of block " + text(thread.index.block) + " at " + thread.where.file +
         ":" + std::to_string(thread.where.line);
}

size_t thread_number(const Thread& thread) { return static_cast<size_t>(&thread - grid.threads.data()); }

// Lets the lanes go if all that are named and still alive have come.
void complete_if_all_arrived(size_t warp, Collective& collective) {
  if (collective.arrived == 0 || collective.arrived != (collective.mask & grid.warps[warp].alive)) return;
  collective.complete_mask[collective.turn] = collective.arrived;
  for (uint32_t lanes = collective.arrived; lanes != 0; lanes &= lanes - 1)
    grid.threads[warp * 32 + __builtin_ctz(lanes)].state = State::kReady;
  collective.arrived = 0;
  collective.turn ^= 1;
}

void finish(Thread& thread) {
  thread.state = State::kDone;
  const size_t number = thread_number(thread), warp = number / 32;
  const uint32_t bit = 1u << number % 32;
  grid.warps[warp].alive &= ~bit;
  for (const Collective& collective : grid.warps[warp].by_first_lane) {
    if (collective.arrived == 0 || !(collective.mask & bit) || !grid.error.empty()) continue;
    thread.where = collective.where;
    grid.error = "a lane named in the mask of a warp collective has returned without it: " + describe(thread);
  }
}

// A fiber's whole life: one thread of every block.
void live() {
  for (;;) {
    acquire(&grid.block_start[grid.block_turn]);
    (*grid.body)();
    finish(*grid.running);
    release(&grid.block_end[grid.block_turn]);
    Fiber::pause();
  }
}

bool same(Where a, Where b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }

// Nobody can go on: either everyone stands at the same barrier, which opens, or the kernel is wrong.
void open_barrier() {
  const Thread *waiting = nullptr, *in_collective = nullptr, *done = nullptr;
  int count = 0;
  for (size_t i = 0; i < grid.block_threads; ++i) {
    const Thread& thread = grid.threads[i];
    if (thread.state == State::kDone) done = &thread;
    if (thread.state == State::kInCollective) in_collective = &thread;
    if (thread.state != State::kAtBarrier) continue;
    ++count;
    if (waiting == nullptr) waiting = &thread;
    if (!same(thread.where, waiting->where) || thread.vote != waiting->vote)
      grid.error = "divergent __syncthreads: " + describe(*waiting) + " and " + describe(thread);
  }
  if (in_collective != nullptr) {
    grid.error = "a warp collective waits for lanes that never come: " + describe(*in_collective) +
                 (waiting ? ", while " + describe(*waiting) + " waits in __syncthreads" : "");
  } else if (done != nullptr && grid.error.empty()) {
    grid.error = "divergent __syncthreads: " + describe(*waiting) + " waits, while thread " + text(done->index.thread) +
                 " has returned";
  }
  if (!grid.error.empty()) return;
  const bool all = grid.votes_for == count, any = grid.votes_for != 0;
  grid.vote_result = waiting->vote == Vote::kCount ? grid.votes_for : waiting->vote == Vote::kAnd ? all : any;
  grid.votes_for = 0;
  grid.barrier_turn ^= 1;
  for (size_t i = 0; i < grid.block_threads; ++i) grid.threads[i].state = State::kReady;
}

void start_block(uint3 block, dim3 block_dim, dim3 grid_dim) {
  size_t i = 0;
  for (unsigned z = 0; z < block_dim.z; ++z)
    for (unsigned y = 0; y < block_dim.y; ++y)
      for (unsigned x = 0; x < block_dim.x; ++x, ++i) {
        grid.threads[i].index = {{x, y, z}, block, block_dim, grid_dim};
        grid.threads[i].state = State::kReady;
      }
  for (Warp& warp : grid.warps) {
    warp.alive = 0;
    for (Collective& collective : warp.by_first_lane) collective.arrived = 0;
  }
  for (i = 0; i < grid.block_threads; ++i) grid.warps[i / 32].alive |= 1u << i % 32;
  grid.votes_for = 0;
  std::memset(grid.shared, 0xff, grid.shared_bytes);  // NaN and -1: reading before writing is not rewarded with a zero
}

void run_block() {
  grid.block_turn ^= 1;
  release(&grid.block_start[grid.block_turn]);
  while (grid.error.empty()) {
    size_t ran = 0, done = 0;
    if (grid.order == Order::kRandom) std::shuffle(grid.turns.begin(), grid.turns.end(), grid.random);
    for (const uint32_t i : grid.turns) {
      Thread& thread = grid.threads[i];
      done += thread.state == State::kDone;
      if (thread.state != State::kReady) continue;
      ++ran;
      grid.running = &thread;
      current = &thread.index;
      thread.fiber->resume();
      if (!grid.error.empty()) return;
    }
    if (done == grid.block_threads) break;
    if (ran == 0) open_barrier();
  }
  acquire(&grid.block_end[grid.block_turn]);
}

uint3 block_at(uint64_t number, dim3 dims) {
  const auto x = static_cast<unsigned>(number % dims.x), y = static_cast<unsigned>(number / dims.x % dims.y);
  return {x, y, static_cast<unsigned>(number / dims.x / dims.y)};
}

void run_grid(dim3 grid_dim, dim3 block_dim) {
  const uint64_t blocks = uint64_t{grid_dim.x} * grid_dim.y * grid_dim.z;
  std::vector<uint32_t> numbers(blocks);
  std::iota(numbers.begin(), numbers.end(), 0u);
  grid.turns.resize(grid.block_threads);
  std::iota(grid.turns.begin(), grid.turns.end(), 0u);
  if (grid.order == Order::kReverse) {
    std::reverse(numbers.begin(), numbers.end());
    std::reverse(grid.turns.begin(), grid.turns.end());
  } else if (grid.order == Order::kRandom) {
    grid.random.seed(grid.seed);
    std::shuffle(numbers.begin(), numbers.end(), grid.random);
  }
  for (const uint32_t number : numbers) {
    start_block(block_at(number, grid_dim), block_dim, grid_dim);
    run_block();
    if (!grid.error.empty()) return;
  }
}

cudaError_t refusal(const void* kernel, dim3 grid_dim, dim3 block_dim, size_t smem_bytes) {
  const uint64_t threads = uint64_t{block_dim.x} * block_dim.y * block_dim.z;
  if (threads == 0 || threads > 1024 || block_dim.z > 64) return cudaErrorInvalidConfiguration;
  if (grid_dim.x == 0 || grid_dim.y == 0 || grid_dim.z == 0) return cudaErrorInvalidConfiguration;
  if (grid_dim.x > 0x7fffffffu || grid_dim.y > 0xffffu || grid_dim.z > 0xffffu) return cudaErrorInvalidConfiguration;
  const auto allowed = grid.allowed_shared_bytes.find(kernel);
  const size_t most = allowed == grid.allowed_shared_bytes.end() ? kDefaultSharedBytes : allowed->second;
  return smem_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

}  // namespace

void set_order(Order order, uint64_t seed) {
  grid.order = order;
  grid.seed = seed;
}

void launch(const void* kernel, dim3 grid_dim, dim3 block_dim, size_t smem_bytes, const std::function<void()>& body) {
  if (const cudaError_t error = refusal(kernel, grid_dim, block_dim, smem_bytes); error != cudaSuccess) {
    grid.last_error = error;
    return;
  }
  ++grid.launches;
  grid.block_threads = size_t{block_dim.x} * block_dim.y * block_dim.z;
  grid.warps.resize((grid.block_threads + 31) / 32);
  while (grid.threads.size() < grid.block_threads) {
    grid.threads.emplace_back();
    grid.threads.back().fiber = std::make_unique<Fiber>(live);
  }
  // A block of the heap of exactly this size for each launch, so that ASan sees reads past its end.
  struct Free {
    void operator()(char* p) const { ::operator delete[](p, std::align_val_t{16}); }
  };
  const std::unique_ptr<char, Free> shared(static_cast<char*>(::operator new[](smem_bytes, std::align_val_t{16})));
  grid.shared = shared.get();
  grid.shared_bytes = smem_bytes;
  grid.body = &body;
  run_grid(grid_dim, block_dim);
  current = nullptr;
  if (grid.error.empty()) return;
  grid.threads.clear();  // paused in the middle of a kernel: they cannot be used again
  throw Error("emulated kernel: " + std::exchange(grid.error, {}));
}

int64_t launch_count() { return grid.launches; }

void* dynamic_shared() { return grid.shared; }

cudaError_t allow_dynamic_shared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > kMostSharedBytes) return cudaErrorInvalidValue;
  grid.allowed_shared_bytes[kernel] = static_cast<size_t>(bytes);
  return cudaSuccess;
}

int block_barrier(Vote vote, bool predicate, Where where) {
  Thread& self = *grid.running;
  self.state = State::kAtBarrier;
  self.vote = vote;
  self.where = where;
  grid.votes_for += predicate;
  char* order = &grid.barrier[grid.barrier_turn];
  release(order);
  Fiber::pause();
  acquire(order);
  return grid.vote_result;
}

Lanes exchange(uint32_t mask, uint64_t value, bool fence, Where where) {
  Thread& self = *grid.running;
  const size_t number = thread_number(self), warp = number / 32;
  const unsigned lane = number % 32;
  if (!(mask >> lane & 1)) fail("a warp collective is called by a lane that its mask does not name", where);
  if (const uint32_t gone = mask & ~grid.warps[warp].alive; gone != 0)
    fail("the mask of a warp collective names lane " + std::to_string(__builtin_ctz(gone)) +
             ", which has returned or does not exist",
         where);
  Collective& collective = grid.warps[warp].by_first_lane[__builtin_ctz(mask)];
  if (collective.arrived == 0) {
    collective.mask = mask;
    collective.where = where;
  } else if (collective.mask != mask || !same(collective.where, where)) {
    fail("lanes of one warp meet in different collectives, or in one with different masks", where);
  }
  const int turn = collective.turn;
  self.where = where;
  self.state = State::kInCollective;
  collective.values[turn][lane] = value;
  collective.arrived |= 1u << lane;
  if (fence) release(collective.values[turn]);
  complete_if_all_arrived(warp, collective);
  if (self.state == State::kInCollective) Fiber::pause();
  if (fence) acquire(collective.values[turn]);
  return {collective.complete_mask[turn], collective.values[turn]};
}

unsigned lane() { return static_cast<unsigned>(thread_number(*grid.running) % 32); }

void fail(const std::string& what, Where where) {
  grid.running->where = where;
  grid.error = what + ": " + describe(*grid.running);
  Fiber::pause();
  __builtin_unreachable();
}

}  // namespace simt

// ---- the calls of the CUDA runtime that launchers make

namespace {

const char* message(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  if (error == cudaErrorInvalidConfiguration) return "invalid configuration argument";
  return error == cudaErrorInvalidValue ? "invalid argument" : "another error";
}

}  // namespace

cudaError_t cudaGetLastError() { return std::exchange(simt::grid.last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return simt::grid.last_error; }
const char* cudaGetErrorString(cudaError_t error) { return message(error); }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = simt::kMultiprocessors; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = simt::kMostSharedBytes; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  std::memset(p, value, bytes);
  return cudaSuccess;
}
