// Points of the host to the device, a piece at a time: the copy engine has one piece while the next one is staged.
#include "transfer/upload.h"

#include <algorithm>
#include <cstring>

namespace millisecond {
namespace {

constexpr int64_t LEAST_PIECE = 1 << 17;  // words; to start a copy takes as long as to stage a quarter of it
constexpr int64_t MOST_PIECES = 8;

}  // namespace

cudaError_t upload(const UploadJob& job, cudaStream_t stream) {
  int64_t end = header_of(job.frames), first = 0;  // words
  int32_t* const starts = reinterpret_cast<int32_t*>(job.staged);
  starts[0] = 0;
  for (int frame = 0; frame < job.frames; ++frame) starts[frame + 1] = starts[frame] + job.points[frame];
  const int64_t all = int64_t(starts[job.frames]) * job.channels;
  const int64_t piece = std::max(LEAST_PIECE, divide_up(all, MOST_PIECES));
  cudaError_t error = cudaSuccess;
  const auto send = [&] {
    error = cudaMemcpyAsync(job.out + first, job.staged + first, (end - first) * sizeof(uint32_t),
                            cudaMemcpyHostToDevice, stream);
    first = end;
  };
  for (int frame = 0; frame < job.frames; ++frame) {
    const int64_t words = int64_t(job.points[frame]) * job.channels;
    for (int64_t done = 0; done < words;) {
      const int64_t some = std::min(words - done, piece - (end - first));
      std::memcpy(job.staged + end, job.clouds[frame] + done, some * sizeof(uint32_t));
      done += some, end += some;
      if (end - first < piece) continue;
      send();
      if (error != cudaSuccess) return error;
    }
  }
  if (end > first) send();
  return error;
}

}  // namespace millisecond
