// Which tile of conv/resident.cuh serves which channel counts.
#include "conv/resident.cuh"
#include "conv/resident.h"
#include "conv/warpgroup.h"

namespace millisecond {
namespace {

constexpr int MOST_BYTES = 227 * 1024;  // of shared memory

int row_bytes(Precision precision, const ConvolutionArguments& p) {
  return p.c_in * (precision == Precision::tf32 ? 4 : 2);
}

// Look-ahead as measured (docs/performance.md).
template <typename T>
cudaError_t launch(const ConvolutionArguments& p, int multiprocessors, cudaStream_t stream) {
  if constexpr (sizeof(T) == 4) {
    if (p.c_in == 64) return launch_resident<ResidentTile<T, 256, 32, 1>>(p, multiprocessors, stream);
  }
  if (p.c_out == 64) return launch_resident<ResidentTile<T, 128, 64, 1>>(p, multiprocessors, stream);
  return launch_resident<ResidentTile<T, 128, 32, 2>>(p, multiprocessors, stream);
}

}  // namespace

bool is_resident(Precision precision, const ConvolutionArguments& p) {
  if (!p.table.order || p.coords || precision == Precision::single) return false;
  const int bytes = row_bytes(precision, p), panel = bytes == 256 ? 32 : p.c_out;
  return (bytes == 128 || bytes == 256) && p.c_in <= 64 && (p.c_out == 32 || p.c_out == 64) &&
         1024 + p.table.volume * bytes * panel <= MOST_BYTES && has_warpgroups();
}

cudaError_t conv_resident(Precision precision, const ConvolutionArguments& p, int multiprocessors,
                          cudaStream_t stream) {
  switch (precision) {
    case Precision::half:
      return launch<__half>(p, multiprocessors, stream);
    case Precision::bfloat16:
      return launch<__nv_bfloat16>(p, multiprocessors, stream);
    default:
      return launch<float>(p, multiprocessors, stream);
  }
}

}  // namespace millisecond
