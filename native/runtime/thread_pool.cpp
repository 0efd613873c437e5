#include "runtime/thread_pool.h"

#include <stdexcept>

#include "runtime/fp_env.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace drafthead {

namespace {

// A waiting thread spins, since the others are microseconds away. Where every thread has a core it
// gives its own up only after about a millisecond: whoever yields to another process gets the core
// back a time slice later, and the whole team waits. With more threads than cores it must yield
// soon.
constexpr int spins_before_yield = 1 << 15;
constexpr int spins_before_yield_crowded = 1 << 7;
constexpr int spins_before_sleep = 1 << 13;  // between jobs: about 200 us

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void Team::barrier() {
    if (size == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(size)) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    static const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    const int patience = size <= cores ? spins_before_yield : spins_before_yield_crowded;
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
        if (spins < patience) {
            pause();
        } else {
            std::this_thread::yield();
        }
    }
}

ThreadPool::ThreadPool(int threads) {
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {  // the system has no room for another thread: end those that have started
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_ = true;
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::run_erased(Call call, const void* job) {
    if (!workers_.empty() && getpid() != process_) {
        throw std::runtime_error(
            "the model was loaded before this process was forked off, and its threads did not "
            "follow: load it in the child, or with one thread");
    }
    const FloatEnvironment environment;
    call_ = call;
    job_ = job;
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    Team team(0, size(), arrived_, phase_);
    call(job, team);
    team.barrier();
}

void ThreadPool::work(int index) {
    const FloatEnvironment environment;
    uint32_t seen = 0;
    for (;;) {
        uint32_t now = generation_.load(std::memory_order_acquire);
        for (int spins = 0; now == seen; ++spins) {
            if (spins < spins_before_sleep) {
                pause();
            } else {
                generation_.wait(seen, std::memory_order_acquire);
            }
            now = generation_.load(std::memory_order_acquire);
        }
        seen = now;
        if (stop_) return;
        Team team(index, size(), arrived_, phase_);
        call_(job_, team);
        team.barrier();
    }
}

}  // namespace drafthead
