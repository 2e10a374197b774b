// A stack of its own for each emulated CUDA thread. One fiber runs at a time, on the OS thread that resumes it.
#pragma once

#include <cstddef>

#if defined(EAGLE3_SIMT_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

class Fiber {
 public:
  explicit Fiber(void (*body)());  // body never returns; it calls pause() for ever
  ~Fiber();                        // also while paused in the middle of body: its locals are not destroyed
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();        // runs body from where it stands to its next pause()
  static void pause();  // only inside body

 private:
  char* stack_ = nullptr;
  void* context_ = nullptr;          // saved stack pointer, or a ucontext_t where there is no assembly
  void* sanitizer_stack_ = nullptr;  // ASan's
  void* sanitizer_fiber_ = nullptr;  // TSan's
};

// What happened before release(p) is ordered before what follows acquire(p), for TSan; nothing otherwise. Switching
// fibers orders nothing by itself, or no race between two threads of a block would ever be seen.
inline void release([[maybe_unused]] void* p) {
#if defined(EAGLE3_SIMT_TSAN)
  __tsan_release(p);
#endif
}
inline void acquire([[maybe_unused]] void* p) {
#if defined(EAGLE3_SIMT_TSAN)
  __tsan_acquire(p);
#endif
}

}  // namespace simt
