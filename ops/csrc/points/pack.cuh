// As many channels of a row as a thread reads at once.
#pragma once

#include <type_traits>

#include "common.cuh"

namespace millisecond {

template <typename T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Pack {
  T values[WIDTH];
};

template <typename T>
constexpr int WIDEST = 16 / int(sizeof(T));  // channels in 16 bytes

// Whether rows of so many bytes can be read in units of 16.
template <typename... Pointers>
bool in_sixteens(int64_t row_bytes, Pointers... pointers) {
  return row_bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// call(T(), width) with the C++ type of a scalar; width: a constant, the channels that a thread reads at once.
template <typename Call>
cudaError_t with_pack(Scalar type, bool sixteens, Call call) {
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (sixteens) {
      call(zero, std::integral_constant<int, WIDEST<T>>());
    } else {
      call(zero, std::integral_constant<int, 1>());
    }
  });
}

// Threads of a block, x along the packs of a row and y along the rows.
inline dim3 row_threads(int packs, int threads) {
  int x = 1;
  while (x < packs && x < WARP) x *= 2;
  return dim3(x, threads / x);
}

}  // namespace millisecond
