// Fetch on demand (Lin et al., PointAcc, MICRO 2021): the matrix product of each offset reads the rows of its
// pairs where they stand instead of from a gathered buffer. Equivalent to this loop:
//
//   for v, pair of v: products[pair] = features[sources[pair]] weight[v]
//
// The papers' kernels add products to the output by atomics. Here each stays in its own row, and add_products sums
// the rows in the order of the offsets. In a submanifold map the centre pairs every row with itself: its product
// is computed last, where the others are added to it.
#include "device.h"
#include "pairs/fetch.h"

namespace millisecond {
namespace {

cudaError_t launch(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p, After after,
                   const AddProducts& sums, cudaStream_t stream) {
  if (layout.volume == 0 || p.c_out == 0) return cudaSuccess;
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  const bool multiples = p.c_in > 0 && p.c_in % 16 == 0 && p.c_out % 16 == 0;
  if (!multiples || (type == Scalar::float32 && !tf32) || major < 8) {
    return fetch_general(layout, type, p, after, sums, stream);
  }
  switch (type) {
    case Scalar::float16:
      return fetch_half(layout, p, after, sums, stream);
    case Scalar::bfloat16:
      return fetch_bfloat16(layout, p, after, sums, stream);
    default:
      return fetch_tf32(layout, p, after, sums, stream);
  }
}

}  // namespace

cudaError_t fetch_products(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p,
                           cudaStream_t stream) {
  return launch(layout, type, tf32, p, After::store, {}, stream);
}

cudaError_t conv_centre(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p,
                        const AddProducts& sums, cudaStream_t stream) {
  return launch(layout, type, tf32, p, After::add, sums, stream);
}

cudaError_t fetch_rows(const PairLayout& layout, Scalar type, bool tf32, const FetchProducts& p,
                       const AddProducts& sums, cudaStream_t stream) {
  return launch(layout, type, tf32, p, After::place, sums, stream);
}

}  // namespace millisecond
