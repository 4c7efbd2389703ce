// The checksum of weights files, FIPS 180-4.
#pragma once

#include <cstddef>
#include <string>

namespace millisecond::detector {

std::string sha256(const unsigned char* data, size_t size);  // 64 hexadecimal digits

}  // namespace millisecond::detector
