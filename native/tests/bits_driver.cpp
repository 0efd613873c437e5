// The core without Python, for instruction sets that no test machine runs natively:
//
//   bits_driver isas                      the instruction sets that can run here, best first
//   bits_driver kernels ISA OUT TYPE...   every kernel of one; matmul for each GGUF weight type
//   bits_driver model ISA OUT MODEL CHUNK...
//                                         a model of a file that tests/exactness/test_arm.py wrote
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "runtime/dispatch.h"
#include "tests/kernel_cases.h"
#include "tests/model_case.h"

namespace drafthead::tests {
namespace {

std::vector<int> integers(char** begin, char** end) {
    std::vector<int> values;
    for (char** word = begin; word != end; ++word) values.push_back(std::atoi(*word));
    return values;
}

int run(int count, char** words) {
    const std::string command = count > 1 ? words[1] : "";
    if (command == "isas") {
        for (const std::string& name : available_isas()) std::printf("%s\n", name.c_str());
        return 0;
    }
    if (count < 4) throw std::invalid_argument("expected isas, kernels or model with arguments");
    set_isa(words[2]);
    Record record(words[3]);
    if (command == "kernels") {
        std::vector<GgmlType> types;
        for (const int type : integers(words + 4, words + count)) {
            types.push_back(static_cast<GgmlType>(type));
        }
        run_kernels(kernels(), types, record);
    } else if (command == "model" && count > 5) {
        run_model(words[4], integers(words + 5, words + count), record);
    } else {
        throw std::invalid_argument("unknown command " + command);
    }
    return 0;
}

}  // namespace
}  // namespace drafthead::tests

int main(int count, char** words) {
    try {
        return drafthead::tests::run(count, words);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
