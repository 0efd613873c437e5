#include "runtime/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#if defined(DRAFTHEAD_NEON)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace drafthead {

namespace {

std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> tables;
#if defined(DRAFTHEAD_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    if (avx512) tables.push_back(avx512_kernels());
    if (avx2 && __builtin_cpu_supports("avxvnni")) tables.push_back(avxvnni_kernels());
    if (avx512) tables.push_back(avx512vl_kernels());
    if (avx2) tables.push_back(avx2_kernels());
#elif defined(DRAFTHEAD_NEON)
    const bool dot_product = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    const bool i8mm = dot_product && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
    if (i8mm) tables.push_back(neon_i8mm_kernels());
    if (dot_product) tables.push_back(neon_kernels());
#endif
    tables.push_back(scalar_kernels());
    return tables;
}

const Kernels* find(const std::string& name) {
    std::string known;
    for (const Kernels* table : runnable()) {
        if (name == table->name) return table;
        known += (known.empty() ? "" : ", ") + std::string(table->name);
    }
    throw std::invalid_argument("instruction set '" + name +
                                "' is not available here; this machine runs " + known);
}

const Kernels* at_start() {
    const char* wanted = std::getenv("DRAFTHEAD_ISA");
    return wanted != nullptr && *wanted != '\0' ? find(wanted) : runnable().front();
}

std::atomic<const Kernels*>& active() {
    static std::atomic<const Kernels*> table{at_start()};
    return table;
}

}  // namespace

std::vector<std::string> available_isas() {
    std::vector<std::string> names;
    for (const Kernels* table : runnable()) names.emplace_back(table->name);
    return names;
}

const Kernels& kernels() { return *active().load(std::memory_order_relaxed); }

void set_isa(const std::string& name) { active().store(find(name), std::memory_order_relaxed); }

}  // namespace drafthead
