// The end of a bird's-eye-view network: one kernel, or two convolutions of each row by itself.
#include "conv/warpgroup.h"
#include "engine/engine.h"
#include "engine/launch.h"

namespace millisecond {

cudaError_t run_heads(Scalar type, bool tf32, const HeadJob& job, const Allocate& allocate, cudaStream_t stream) {
  if (job.rows == 0) return cudaSuccess;
  const Route up = route_of(type, tf32, 1, job.c_in, job.parts * job.width);
  const Route head = route_of(type, tf32, 1, job.width, job.head_channels);
  if (up.warpgroups && head.warpgroups && type != Scalar::float32 && job.width % PANEL == 0 &&
      job.head_channels == PANEL) {
    return heads_warpgroup(type, job, up.multiprocessors, stream);
  }
  const int rows = job.rows * job.parts;
  int* const table = static_cast<int*>(allocate(int64_t(rows) * sizeof(int)));
  int* const scaled = static_cast<int*>(allocate(sizeof(int)));
  if (const cudaError_t error = identity_table(job.rows, job.count, job.parts, table, scaled, stream))
    return error;
  ConvolutionArguments p = {};
  p.features = job.features;
  p.weight = job.up;
  p.bias = job.up_bias;
  p.out = allocate(int64_t(rows) * job.width * bytes_of(type));
  p.table = {table, job.count, rows, job.rows, 1, false};
  p.c_in = job.c_in;
  p.c_out = job.parts * job.width;
  p.relu = true;
  if (const cudaError_t error = launch_conv(p, up, allocate, stream)) return error;
  p.features = p.out;
  p.weight = job.head;
  p.bias = job.head_bias;
  p.out = job.out;
  p.table = {table, scaled, rows, rows, 1, false};
  p.c_in = job.width;
  p.c_out = job.head_channels;
  p.relu = false;
  return launch_conv(p, head, allocate, stream);
}

}  // namespace millisecond
