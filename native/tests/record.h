// What the driver computes, written to a file as named arrays: a line "name type count", then the
// values. tests/exactness/test_arm.py reads it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace drafthead::tests {

class Record {
public:
    explicit Record(const char* path) : file_(std::fopen(path, "wb")) {
        if (file_ == nullptr) throw std::runtime_error(std::string("cannot write ") + path);
    }
    ~Record() { std::fclose(file_); }
    Record(const Record&) = delete;
    Record& operator=(const Record&) = delete;

    void add(const std::string& name, const float* values, size_t count) {
        write(name, "f4", values, count, 4);
    }
    void add(const std::string& name, const int32_t* values, size_t count) {
        write(name, "i4", values, count, 4);
    }
    void add(const std::string& name, const uint16_t* values, size_t count) {
        write(name, "u2", values, count, 2);
    }
    void add(const std::string& name, const int8_t* values, size_t count) {
        write(name, "i1", values, count, 1);
    }

private:
    void write(const std::string& name, const char* type, const void* values, size_t count,
               size_t size) {
        std::fprintf(file_, "%s %s %zu\n", name.c_str(), type, count);
        if (std::fwrite(values, size, count, file_) != count) {
            throw std::runtime_error("the record is cut short");
        }
    }

    std::FILE* file_;
};

}  // namespace drafthead::tests
