// Compile this and simt.cpp without -fsanitize=thread and with EAGLE3_SIMT_TSAN instead: they are the machine TSan
// should not look into. With -fsanitize=address they need nothing.
#include "fiber.h"

#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {
namespace {

constexpr size_t kPageBytes = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;  // red zones around every local
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

// Where resume() was called: the stack to go back to.
struct {
  void* context = nullptr;
  void* sanitizer_stack = nullptr;
  const void* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* sanitizer_fiber = nullptr;
} caller;

Fiber* running = nullptr;
void (*first_body)() = nullptr;

void enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &caller.stack_bottom, &caller.stack_bytes);
#endif
  first_body();
  __builtin_unreachable();
}

#if defined(__x86_64__)
extern "C" void eagle3_simt_switch(void** save, void* to);
// Callee-saved registers on the old stack, then the new stack and its registers.
asm(R"(.text
.globl eagle3_simt_switch
.hidden eagle3_simt_switch
.type eagle3_simt_switch, @function
eagle3_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size eagle3_simt_switch, . - eagle3_simt_switch
)");

void* new_context(char* stack) {
  // From the top: padding that leaves the stack aligned as after a call, the address `ret` goes to, six registers.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 1;
  *--top = reinterpret_cast<void*>(enter);
  top -= 6;
  std::memset(top, 0, 6 * sizeof *top);
  return top;
}
void delete_context(void*) {}
void switch_context(void** from, void* to) { eagle3_simt_switch(from, to); }
#else
void* new_context(char* stack) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, enter, 0);
  return context;
}
void delete_context(void* context) { delete static_cast<ucontext_t*>(context); }
void switch_context(void** from, void* to) {
  static ucontext_t caller_context;
  if (*from == nullptr) *from = &caller_context;
  swapcontext(static_cast<ucontext_t*>(*from), static_cast<ucontext_t*>(to));
}
#endif

}  // namespace

Fiber::Fiber(void (*body)()) {
  // The page below the stack is left without access: an overflow is a fault there and not a mystery elsewhere.
  void* memory = mmap(nullptr, kPageBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("simt: no memory for the stack of an emulated thread");
  mprotect(memory, kPageBytes, PROT_NONE);
  stack_ = static_cast<char*>(memory) + kPageBytes;
  first_body = body;
  context_ = new_context(stack_);
#if defined(EAGLE3_SIMT_TSAN)
  sanitizer_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if defined(EAGLE3_SIMT_TSAN)
  __tsan_destroy_fiber(sanitizer_fiber_);
#endif
  delete_context(context_);
  munmap(stack_ - kPageBytes, kPageBytes + kStackBytes);
}

void Fiber::resume() {
  running = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&caller.sanitizer_stack, stack_, kStackBytes);
#endif
#if defined(EAGLE3_SIMT_TSAN)
  caller.sanitizer_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(sanitizer_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  switch_context(&caller.context, context_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(caller.sanitizer_stack, nullptr, nullptr);
#endif
}

void Fiber::pause() {
  Fiber* self = running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&self->sanitizer_stack_, caller.stack_bottom, caller.stack_bytes);
#endif
#if defined(EAGLE3_SIMT_TSAN)
  __tsan_switch_to_fiber(caller.sanitizer_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  switch_context(&self->context_, caller.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->sanitizer_stack_, &caller.stack_bottom, &caller.stack_bytes);
#endif
}

}  // namespace simt
