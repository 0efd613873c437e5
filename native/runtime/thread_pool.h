// A persistent pool: one job at a time runs on every thread, the caller included, and its threads
// meet at cheap barriers. Work is split over output elements, never inside a reduction.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace drafthead {

// What one thread of a running job sees.
class Team {
public:
    Team(int index, int size, std::atomic<uint32_t>& arrived, std::atomic<uint32_t>& phase)
        : index(index), size(size), arrived_(arrived), phase_(phase) {}

    const int index;
    const int size;

    // This thread's share of n items: [begin, end).
    struct Range {
        int begin, end;
    };
    Range share(int n) const {
        return {static_cast<int>(int64_t{n} * index / size),
                static_cast<int>(int64_t{n} * (index + 1) / size)};
    }
    // All threads of the job wait for one another.
    void barrier();

private:
    std::atomic<uint32_t>& arrived_;
    std::atomic<uint32_t>& phase_;
};

class ThreadPool {
public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls job(team) on every thread and returns when all have finished. The job must not throw,
    // and the caller sees to it that one job runs at a time. Throws std::runtime_error in a process
    // that was forked off: threads do not follow.
    template <class Job>
    void run(const Job& job) {
        run_erased([](const void* j, Team& team) { (*static_cast<const Job*>(j))(team); }, &job);
    }

private:
    using Call = void (*)(const void*, Team&);
    void run_erased(Call call, const void* job);
    void stop();
    void work(int index);

    std::vector<std::thread> workers_;
    const pid_t process_ = getpid();
    Call call_ = nullptr;
    const void* job_ = nullptr;
    bool stop_ = false;
    alignas(64) std::atomic<uint32_t> generation_{0};
    alignas(64) std::atomic<uint32_t> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};

}  // namespace drafthead
